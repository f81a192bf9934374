startCharts();
startRollouts();
addEventListener("scroll", () => tooltip.hide(), { passive: true });
