const parts = { charts: startCharts(), browser: startBrowser() };
if (byId("live")) new LivePage(parts);
addEventListener("scroll", () => tooltip.hide(), { passive: true });
