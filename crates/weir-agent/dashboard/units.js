// Figures with their units.

function scaled(value, units, step) {
  let unit = 0;
  while (value >= step && unit < units.length - 1) {
    value /= step;
    unit += 1;
  }
  const digits = unit === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${units[unit]}`;
}

export const rate = (bits) => (bits === undefined || bits === null ? '–' : scaled(bits, ['bit/s', 'kbit/s', 'Mbit/s', 'Gbit/s', 'Tbit/s'], 1000));
export const bytes = (count) => (count === undefined || count === null ? '–' : scaled(count, ['B', 'KiB', 'MiB', 'GiB', 'TiB'], 1024));
export const time = (ms) => new Date(ms).toLocaleString();

/** A rate as `weir set` reads it, without loss: `20mbit`. */
export function typed(bits) {
  if (bits === undefined) return '';
  for (const [unit, size] of [['gbit', 1e9], ['mbit', 1e6], ['kbit', 1e3]]) {
    if (bits >= size && bits % (size / 1000) === 0) return `${bits / size}${unit}`;
  }
  return `${bits}bit`;
}
