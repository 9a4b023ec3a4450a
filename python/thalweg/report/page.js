"use strict";
(async () => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // Narrower than this, a page has no room beside a plot.
  const narrow = (width) => width < 800;

  async function unpacked(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (one) => one.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }

  // The page's policy names the digest of the library, so that it runs only unchanged.
  async function load() {
    const script = document.createElement("script");
    script.textContent = await unpacked("library");
    document.head.append(script);
    return JSON.parse(await unpacked("charts"));
  }

  // What follows from light or dark is a template, so that a change of it redraws and loses nothing.
  function template() {
    const ink = colour("--ink");
    const axis = { gridcolor: colour("--line"), linecolor: colour("--line"), zerolinecolor: colour("--line"),
      automargin: true };
    const marks = { scatter: [{ marker: { color: ink } }], bar: [{ error_y: { color: ink } }] };
    return { data: marks, layout: {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", xaxis: axis, yaxis: axis,
      font: { color: ink, size: 13 },
      hoverlabel: { bgcolor: colour("--shade"), bordercolor: colour("--line"), font: { color: ink } },
      modebar: { color: colour("--muted"), activecolor: colour("--accent"), bgcolor: "rgba(0,0,0,0)" },
    } };
  }

  function layout(chart, width) {
    const below = { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom" };
    return { margin: { l: 60, r: 20, t: 40, b: 50 }, legend: narrow(width) ? below : {},
      ...structuredClone(chart.layout), template: template() };
  }

  let charts;
  try {
    charts = await load();
  } catch (error) {
    document.getElementById("no-plots").hidden = false;
    throw error;
  }

  function draw(place) {
    if (place.dataset.drawn) return;
    place.dataset.drawn = "yes";
    const chart = charts[place.dataset.chart];
    const config = { responsive: true, displaylogo: false, toImageButtonOptions: { filename: chart.name },
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };
    Plotly.newPlot(place, chart.traces, layout(chart, place.clientWidth), config);
  }

  const places = [...document.querySelectorAll(".plot")];
  for (const place of places) {
    const folded = place.closest("details");
    if (folded && !folded.open) folded.addEventListener("toggle", () => draw(place), { once: true });
    else draw(place);
  }
  for (const box of document.querySelectorAll("label.scale input")) {
    box.addEventListener("change", () => {
      const place = document.getElementById(box.value);
      const axis = place.dataset.axis;
      Plotly.relayout(place, { [`${axis}.type`]: box.checked ? "log" : "linear", [`${axis}.autorange`]: true });
    });
  }
  dark.addEventListener("change", () => {
    for (const place of places) if (place.dataset.drawn) Plotly.relayout(place, { template: template() });
  });
})();
