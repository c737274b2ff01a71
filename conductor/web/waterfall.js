// One turn as bars over time, and the latency of the last ones.
import { byId, count, el, plain } from "./dom.js";
import { keep, recall } from "./store.js";
import { turns } from "./turns.js";

const LATENCIES = 50;

/** The figures of `turn.metrics` in words. */
function inWords({ firstTokenMs, firstSpeechMs, toolMs, inputTokens, outputTokens, cost }) {
  return [
    firstTokenMs !== undefined && `The model's first word came after ${count(firstTokenMs)} ms.`,
    firstSpeechMs !== undefined && `The first sentence was sent to be spoken after ${count(firstSpeechMs)} ms.`,
    toolMs > 0 && `Tools ran for ${count(toolMs)} ms.`,
    `The model read ${count(inputTokens)} tokens and wrote ${count(outputTokens)}.`,
    cost > 0 && `That cost ${cost}.`,
  ]
    .filter(Boolean)
    .join(" ");
}

/** Shows the chosen turn, by default the latest; takes the same frames as the timeline. */
export function waterfall() {
  const select = byId("which-turn");
  let chosen = -1; // the latest
  let drawing = 0;

  let latencies = recall("latencies", []); // of first sentences, in ms

  function drawLatencies() {
    const most = Math.max(...latencies, 1);
    const middle = [...latencies].sort((one, other) => one - other)[Math.floor(latencies.length / 2)];
    const words = `First sentence: ${middle} ms at the median of ${latencies.length} turns, ${most} ms at most`;
    const bars = latencies.map((ms) => {
      const bar = el("i", { title: `${ms} ms` });
      bar.style.height = `${Math.max(4, (100 * ms) / most)}%`;
      return bar;
    });
    byId("latency").hidden = !latencies.length;
    byId("latency").replaceChildren(el("div", { class: "chart", "aria-hidden": "true" }, ...bars), el("figcaption", { class: "quiet", text: words }));
  }

  function measure({ event: { type, payload } }) {
    if (type !== "turn.metrics" || payload.firstSpeechMs === undefined) return;
    keep("latencies", (latencies = [...latencies, payload.firstSpeechMs].slice(-LATENCIES)));
    drawLatencies();
  }

  function titles(all) {
    while (select.options.length > all.length) select.lastElementChild.remove();
    all.forEach((turn, index) => {
      const option = select.options[index] ?? select.appendChild(el("option", { value: index }));
      const title = `${turn.number}: ${turn.title.slice(0, 60)}`;
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
    byId("waterfall").replaceChildren(bars, el("p", { text: turn.metrics ? inWords(turn.metrics) : "" }));
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
  drawLatencies();
  return {
    add(frame) {
      measure(frame);
      return found.add(frame);
    },
    clear() {
      keep("latencies", (latencies = []));
      drawLatencies();
      found.clear();
    },
  };
}
