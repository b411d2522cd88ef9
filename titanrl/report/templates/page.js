"use strict";
{
  const hidden = new Set();
  const apply = (root) => {
    // A document's roots are figures and the library's own place for notices.
    for (const line of root.renderers ?? []) if (line.name) line.visible = !hidden.has(line.name);
  };
  const draw = async (place) => {
    const item = JSON.parse(place.querySelector("script").textContent);
    place.id = item.target_id = `figure-${item.root_id}-${Math.random().toString(36).slice(2)}`;
    place.replaceChildren();
    const views = await Bokeh.embed.embed_item(item);
    for (const view of views) apply(view.model);
    place.dataset.drawn = "yes";
  };
  const watch = new IntersectionObserver((seen) => {
    for (const each of seen) if (each.isIntersecting) { watch.unobserve(each.target); draw(each.target); }
  }, { rootMargin: "600px" });
  for (const place of document.querySelectorAll(".figure")) {
    // Those in view are drawn before the page counts as loaded: whoever prints or captures it then has them.
    const { top, height } = place.getBoundingClientRect();
    height && top < innerHeight ? draw(place) : watch.observe(place);
  }

  document.querySelectorAll(".legend button").forEach((button) => button.addEventListener("click", () => {
    const { name } = button.dataset;
    hidden.has(name) ? hidden.delete(name) : hidden.add(name);
    document.querySelectorAll(".legend button").forEach((other) => {
      if (other.dataset.name === name) other.setAttribute("aria-pressed", String(!hidden.has(name)));
    });
    for (const each of Bokeh.documents) each.roots().forEach(apply);
  }));
}
