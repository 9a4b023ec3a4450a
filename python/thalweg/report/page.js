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

  function draw(plot) {
    if (plot.dataset.drawn) return;
    plot.dataset.drawn = "yes";
    const chart = charts[plot.dataset.chart];
    const config = { responsive: true, displaylogo: false, toImageButtonOptions: { filename: chart.name },
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };
    Plotly.newPlot(plot, chart.traces, layout(chart, plot.clientWidth), config);
  }

  const plots = [...document.querySelectorAll(".plot")];
  for (const plot of plots) {
    const folded = plot.closest("details");
    if (folded && !folded.open) folded.addEventListener("toggle", () => draw(plot), { once: true });
    else draw(plot);
  }
  for (const box of document.querySelectorAll("label.scale input")) {
    box.addEventListener("change", () => {
      const plot = document.getElementById(box.value);
      const axis = plot.dataset.axis;
      Plotly.relayout(plot, { [`${axis}.type`]: box.checked ? "log" : "linear", [`${axis}.autorange`]: true });
    });
  }
  dark.addEventListener("change", () => {
    for (const plot of plots) if (plot.dataset.drawn) Plotly.relayout(plot, { template: template() });
  });
})();
