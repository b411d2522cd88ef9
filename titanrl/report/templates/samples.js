"use strict";
for (const browser of document.querySelectorAll(".samples")) {
  const PAGE = 20;
  const samples = JSON.parse(browser.querySelector("script").textContent);
  const form = browser.querySelector("form"), list = browser.querySelector(".rows");
  const more = browser.querySelector(".more"), scale = browser.querySelector(".scale");
  let matches = [], numShown = 0;

  const create = (tag, name, text) => {
    const element = document.createElement(tag);
    if (name) element.className = name;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const value = (name) => form.elements[name]?.value ?? "";
  const within = (number, low, high) =>
    (low === "" || number >= Number(low)) && (high === "" || number <= Number(high));
  const format = (number) => typeof number === "number" ? String(Number(number.toPrecision(4))) : number;
  const fact = (name, each) => {
    const element = create("span", "fact", `${name} `);
    element.append(create("b", "", format(each)));
    return element;
  };

  const saturation = (key) => {
    const sizes = matches.flatMap((row) => row.per_token?.[key] ?? []).filter(Number.isFinite).map(Math.abs);
    sizes.sort((a, b) => a - b);
    return sizes[Math.floor(0.98 * (sizes.length - 1))] || 1;
  };
  const coloured = (row, key, limit) => {
    const response = create("pre");
    row.per_token.text.forEach((text, i) => {
      const span = create("span", "", text), number = row.per_token[key][i];
      if (Number.isFinite(number)) {
        const opacity = Math.min(Math.abs(number) / limit, 1) * 0.75;
        span.style.background = `rgba(${number < 0 ? "0,114,178" : "230,130,0"},${opacity.toFixed(3)})`;
        const keys = Object.keys(row.per_token).filter((name) => name !== "text");
        span.title = keys.map((name) => `${name} ${format(row.per_token[name][i])}`).join("\n");
      }
      response.append(span);
    });
    return response;
  };
  const turn = (message) => {
    const element = create("div", `turn ${message.role}`);
    const calls = (message.tool_calls ?? []).map((call) => JSON.stringify(call.function ?? call));
    const text = [message.content ?? "", ...calls].filter((part) => part !== "").join("\n");
    element.append(create("b", "role", message.role), create("pre", "", text));
    return element;
  };
  const show = () => {
    const key = value("colour"), limit = key && saturation(key);
    for (const row of matches.slice(numShown, numShown + PAGE)) {
      const card = create("article"), facts = create("p", "facts");
      const hidden = new Set(["prompt", "response", "answer", "rewards", "per_token", "transcript"]);
      if (!form.elements.run || value("run")) hidden.add("run"); // All rows are of the same run.
      for (const [name, each] of Object.entries(row)) {
        if (hidden.has(name) || each === null) continue;
        facts.append(fact(name.replaceAll("_", " "), each), " ");
      }
      for (const [name, each] of Object.entries(row.rewards ?? {})) {
        facts.append(fact(name, each), " ");
      }
      card.append(facts);
      if (row.transcript?.length) {
        const fold = create("details", "transcript");
        fold.open = true;
        fold.append(create("summary", "", `${row.transcript.length} messages`), ...row.transcript.map(turn));
        card.append(fold);
      } else card.append(create("pre", "prompt", row.prompt));
      const hasColours = key && row.per_token?.[key];
      if (hasColours) card.append(coloured(row, key, limit));
      else if (!row.transcript?.length) card.append(create("pre", "", row.response));
      if (row.answer) {
        const fold = create("details");
        fold.append(create("summary", "", "reference answer"), create("pre", "", row.answer));
        card.append(fold);
      }
      list.append(card);
    }
    numShown = Math.min(numShown + PAGE, matches.length);
    more.hidden = numShown >= matches.length;
    browser.querySelector(".count").textContent = `${matches.length} matching samples, ${numShown} shown.`;
    if (scale) { scale.hidden = !key; if (key) scale.querySelector("output").textContent = format(limit); }
  };
  const filter = () => {
    const text = value("text").toLowerCase(), finishReason = value("finish_reason"), order = value("order");
    matches = samples.filter((row) => (value("run") === "" || row.run === value("run"))
      && within(row.step, value("first"), value("last")) && within(row.reward, value("low"), value("high"))
      && (finishReason === "" || row.finish_reason === finishReason)
      && (text === "" || `${row.prompt}\n${row.response}\n${JSON.stringify(row.transcript ?? "")}`.toLowerCase().includes(text)));
    const key = order.replace("-", ""), sign = order.startsWith("-") ? -1 : 1;
    matches.sort((a, b) => sign * ((a[key] ?? 0) - (b[key] ?? 0)));
    list.replaceChildren();
    numShown = 0;
    show();
  };
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", show);
  filter();
}
