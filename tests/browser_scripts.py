"""Scripts that the tests of pages run in a browser."""

from __future__ import annotations

# Of all text that is shown: what it says, and the contrast (WCAG 2) of its colour with what lies behind it.
CONTRAST = """() => {
  const light = c => { const v = c / 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const rgba = text => { const n = text.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const luminance = c => 0.2126 * light(c[0]) + 0.7152 * light(c[1]) + 0.0722 * light(c[2]);
  const behind = item => {
    for (let at = item; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] === 1) return colour;
    }
    return [255, 255, 255, 1];
  };
  const found = [];
  for (const item of document.body.querySelectorAll('*')) {
    const own = [...item.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!own || !item.getClientRects().length || ['TITLE', 'DESC'].includes(item.tagName.toUpperCase())) continue;
    const style = getComputedStyle(item);
    const ink = luminance(rgba(item.tagName === 'text' ? style.fill : style.color));
    const paper = luminance(behind(item));
    found.push([item.textContent.trim(), (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05)]);
  }
  return found;
}"""
