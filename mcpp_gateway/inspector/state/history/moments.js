// Moments as people write them: 10:00, yesterday, 2026-11-16T10:00, 2h (ago).

const UNITS = { s: 1, m: 60, min: 60, h: 3_600, d: 86_400, w: 604_800 };
const DAY = /^(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ](\d{1,2}):(\d{2})(?::(\d{2}))?)?$/;
const CLOCK = /^(\d{1,2}):(\d{2})(?::(\d{2}))?$/;

/**
 * Return a moment in seconds, by the reader's clock and calendar; null if it is not one. A time of day is
 * the last that has passed. `isEnd` takes a whole day to its end.
 */
export function readMoment(text, now, { isEnd = false } = {}) {
  const written = text.trim().toLowerCase();
  const ago = /^(\d{1,6})\s*(s|m|min|h|d|w)(?: ago)?$/.exec(written);
  if (ago) return now / 1000 - Number(ago[1]) * UNITS[ago[2]];
  if (written === "now") return now / 1000;
  if (written === "today" || written === "yesterday") {
    return seconds(daysFrom(now, (isEnd ? 1 : 0) - (written === "today" ? 0 : 1)));
  }
  const clock = CLOCK.exec(written);
  if (clock) return ofDay(now, clock);
  const day = DAY.exec(text.trim().toUpperCase());
  if (day) return ofCalendar(day, isEnd);
  const instant = /^\d{4}-\d\d-\d\dT/i.test(text.trim()) ? Date.parse(text.trim()) : Number.NaN;
  return Number.isNaN(instant) ? null : instant / 1000;
}

function ofDay(now, [, hours, minutes, rest = "0"]) {
  if (Number(hours) > 23 || Number(minutes) > 59 || Number(rest) > 59) return null;
  const at = (days) => daysFrom(now, days, Number(hours), Number(minutes), Number(rest));
  const today = at(0);
  return seconds(today.getTime() > now ? at(-1) : today);
}

function ofCalendar([, year, month, day, hours, minutes = "0", rest = "0"], isEnd) {
  const isWhole = hours === undefined;
  const [y, m, d] = [Number(year), Number(month) - 1, Number(day)];
  const date = new Date(y, m, d + (isWhole && isEnd ? 1 : 0), Number(hours ?? 0), Number(minutes), Number(rest));
  const isReal = new Date(y, m, d).getMonth() === m && Number(hours ?? 0) < 24 && Number(minutes) < 60 && Number(rest) < 60;
  return isReal ? seconds(date) : null;
}

function daysFrom(now, days, ...time) {
  const date = new Date(now);
  return new Date(date.getFullYear(), date.getMonth(), date.getDate() + days, ...(time.length ? time : [0]));
}

const seconds = (date) => date.getTime() / 1000;
