// User settings, kept in local storage.

const KEY = "mcpp.settings";
const DEFAULTS = { hints: false, foldConcluded: true, shortcuts: true, theme: "auto" };

export function loadSettings() {
  try {
    return { ...DEFAULTS, ...JSON.parse(localStorage.getItem(KEY)) };
  } catch {
    return { ...DEFAULTS };
  }
}

export function saveSettings(settings) {
  localStorage.setItem(KEY, JSON.stringify(settings));
}

export function showTheme({ theme }) {
  document.documentElement.dataset.theme = theme;
}
