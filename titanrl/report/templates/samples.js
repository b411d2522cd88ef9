"use strict";
for (const place of document.querySelectorAll(".samples")) {
  const PAGE = 20;
  const samples = JSON.parse(place.querySelector("script").textContent);
  const form = place.querySelector("form"), list = place.querySelector(".rows");
  const more = place.querySelector(".more"), scale = place.querySelector(".scale");
  let found = [], shown = 0;

  const make = (tag, name, text) => {
    const made = document.createElement(tag);
    if (name) made.className = name;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const value = (name) => form.elements[name]?.value ?? "";
  const within = (number, low, high) =>
    (low === "" || number >= Number(low)) && (high === "" || number <= Number(high));
  const format = (number) => typeof number === "number" ? String(Number(number.toPrecision(4))) : number;
  const fact = (name, each) => {
    const whole = make("span", "fact", `${name} `);
    whole.append(make("b", "", format(each)));
    return whole;
  };

  const strongest = (key) => {
    const sizes = found.flatMap((row) => row.per_token?.[key] ?? []).filter(Number.isFinite).map(Math.abs);
    sizes.sort((a, b) => a - b);
    return sizes[Math.floor(0.98 * (sizes.length - 1))] || 1;
  };
  const coloured = (row, key, top) => {
    const answer = make("pre");
    row.per_token.text.forEach((text, i) => {
      const span = make("span", "", text), number = row.per_token[key][i];
      if (Number.isFinite(number)) {
        const part = Math.min(Math.abs(number) / top, 1) * 0.75;
        span.style.background = `rgba(${number < 0 ? "0,114,178" : "230,130,0"},${part.toFixed(3)})`;
        const kept = Object.keys(row.per_token).filter((name) => name !== "text");
        span.title = kept.map((name) => `${name} ${format(row.per_token[name][i])}`).join("\n");
      }
      answer.append(span);
    });
    return answer;
  };
  const show = () => {
    const key = value("colour"), top = key && strongest(key);
    for (const row of found.slice(shown, shown + PAGE)) {
      const card = make("article"), facts = make("p", "facts");
      const hide = new Set(["prompt", "response", "answer", "rewards", "per_token"]);
      if (!form.elements.run || value("run")) hide.add("run"); // Then all are of one run.
      for (const [name, each] of Object.entries(row)) {
        if (hide.has(name) || each === null) continue;
        facts.append(fact(name.replaceAll("_", " "), each), " ");
      }
      for (const [name, each] of Object.entries(row.rewards ?? {})) {
        facts.append(fact(name, each), " ");
      }
      card.append(facts, make("pre", "prompt", row.prompt));
      card.append(key && row.per_token?.[key] ? coloured(row, key, top) : make("pre", "", row.response));
      if (row.answer) {
        const fold = make("details");
        fold.append(make("summary", "", "reference answer"), make("pre", "", row.answer));
        card.append(fold);
      }
      list.append(card);
    }
    shown = Math.min(shown + PAGE, found.length);
    more.hidden = shown >= found.length;
    place.querySelector(".count").textContent = `${found.length} samples fit, ${shown} are shown.`;
    if (scale) { scale.hidden = !key; if (key) scale.querySelector("output").textContent = format(top); }
  };
  const filter = () => {
    const text = value("text").toLowerCase(), ending = value("ending"), order = value("order");
    found = samples.filter((row) => (value("run") === "" || row.run === value("run"))
      && within(row.step, value("first"), value("last")) && within(row.reward, value("low"), value("high"))
      && (ending === "" || row.finish_reason === ending)
      && (text === "" || `${row.prompt}\n${row.response}`.toLowerCase().includes(text)));
    const key = order.replace("-", ""), sign = order.startsWith("-") ? -1 : 1;
    found.sort((a, b) => sign * ((a[key] ?? 0) - (b[key] ?? 0)));
    list.replaceChildren();
    shown = 0;
    show();
  };
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", show);
  filter();
}
