"use strict";
{
  const hidden = new Set();
  const apply = (root) => {
    // The roots of a document are figures and the library's own element for notices.
    for (const line of root.renderers ?? []) if (line.name) line.visible = !hidden.has(line.name);
  };
  const render = async (element) => {
    const item = JSON.parse(element.querySelector("script").textContent);
    element.id = item.target_id = `figure-${item.root_id}-${Math.random().toString(36).slice(2)}`;
    element.replaceChildren();
    const views = await Bokeh.embed.embed_item(item);
    for (const view of views) apply(view.model);
    element.dataset.rendered = "yes";
  };
  const observer = new IntersectionObserver((entries) => {
    for (const each of entries) if (each.isIntersecting) { observer.unobserve(each.target); render(each.target); }
  }, { rootMargin: "600px" });
  for (const element of document.querySelectorAll(".figure")) {
    // Visible figures are rendered before the load event, so that prints and screenshots include them.
    const { top, height } = element.getBoundingClientRect();
    height && top < innerHeight ? render(element) : observer.observe(element);
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
