// Returns the texts of a page that contrast too little with what is behind them: less than 4.5, as WCAG 2 counts.
() => {
  const channels = text => text.match(/[\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b]
    .map(c => c / 255)
    .map(c => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (let each = element; each; each = each.parentElement) {
      const color = channels(getComputedStyle(each).backgroundColor);
      if (color.length < 4 || color[3] === 1) return color;
    }
    return channels(getComputedStyle(document.documentElement).backgroundColor);
  };
  const weak = new Set();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode.data.trim();
    const element = texts.currentNode.parentElement;
    if (!text || !element.getBoundingClientRect().width || element.closest("[disabled], .unseen")) continue;
    const style = getComputedStyle(element);
    const front = channels(element.closest("svg") ? style.fill : style.color);
    const [light, dark] = [front, behind(element)].map(luminance).sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    if (ratio < 4.5) weak.add(`${element.tagName}.${element.getAttribute("class")} ${ratio.toFixed(2)}: ${text}`);
  }
  return [...weak];
}
