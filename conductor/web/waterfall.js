// One turn as bars over time.
import { byId, el, plain } from "./dom.js";
import { turns } from "./turns.js";

/** Shows the chosen turn, by default the latest; takes the same frames as the timeline. */
export function waterfall() {
  const select = byId("which-turn");
  let chosen = -1; // the latest
  let drawing = 0;

  function titles(all) {
    while (select.options.length > all.length) select.lastElementChild.remove();
    all.forEach((turn, index) => {
      const option = select.options[index] ?? select.appendChild(el("option", { value: index }));
      const title = `${index + 1}: ${turn.title.slice(0, 60)}`;
      if (option.textContent !== title) option.replaceChildren(...el("i", { text: title }).childNodes);
    });
    if (chosen < 0 || chosen >= all.length) select.selectedIndex = all.length - 1;
  }

  function bar(span, turn, total) {
    const until = span.end ?? turn.end;
    const fill = el("span", { class: "fill" });
    fill.style.left = `${(100 * (span.start - turn.start)) / total}%`;
    fill.style.width = `${(100 * (until - span.start)) / total}%`;
    const took = `${Math.round(until - span.start)} ms${span.end === null ? " …" : ""}`;
    const from = `at ${Math.round(span.start - turn.start)}`;
    return el(
      "div",
      { class: `span of-${span.kind}`, role: "listitem" },
      el("span", { class: "name", text: span.name, title: plain(span.name, 200) }),
      el("span", { class: "track" }, fill),
      el("span", { class: "ms quiet", text: from }),
      el("span", { class: "ms", text: took }),
    );
  }

  function draw(all) {
    titles(all);
    const turn = all[select.selectedIndex];
    if (!turn) return;
    const total = Math.max(1, turn.end - turn.start);
    const whole = { name: "All of it", kind: "all", start: turn.start, end: turn.end };
    const spans = [whole, ...[...turn.spans].sort((one, other) => one.start - other.start || one.end - other.end)];
    const bars = el("div", { role: "list", "aria-label": "Where the time went", class: "spans" }, ...spans.map((span) => bar(span, turn, total)));
    const metrics = Object.entries(turn.metrics ?? {}).map(([name, value]) => el("p", { class: "quiet", text: `${name}: ${value}` }));
    byId("waterfall").replaceChildren(bars, ...metrics);
  }

  const found = turns((all) => {
    // Once a frame of the screen: partials come faster.
    drawing ||= requestAnimationFrame(() => {
      drawing = 0;
      draw(all);
    });
  });
  select.addEventListener("change", () => {
    chosen = select.selectedIndex === found.all.length - 1 ? -1 : select.selectedIndex;
    draw(found.all);
  });
  return { add: found.add, clear: found.clear };
}
