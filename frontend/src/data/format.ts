// Numbers as people read them. JSON carries NaN and infinities as words; a null is an empty cell, never 0.

export type Numeric = number | string | null | undefined;

export function number(value: Numeric): number | null {
  if (value === null || value === undefined || value === '') return null;
  if (typeof value === 'number') return value;
  if (value === 'nan') return NaN;
  if (value === 'inf') return Infinity;
  if (value === '-inf') return -Infinity;
  const parsed = Number(value);
  return Number.isNaN(parsed) ? null : parsed;
}

export function short(value: Numeric): string {
  const x = number(value);
  if (x === null) return '';
  if (Number.isNaN(x)) return 'NaN';
  if (!Number.isFinite(x)) return x > 0 ? '∞' : '−∞';
  if (x === 0) return Object.is(x, -0) ? '−0' : '0';
  const size = Math.abs(x);
  if (x < 1 && x >= 0.9999) return `1−${minus((1 - x).toExponential(1))}`; // a cosine that is not 1 must not look like it
  if (Number.isInteger(x) && size < 1e15) return minus(x.toLocaleString('en'));
  if (size >= 1e-3 && size < 1e5) return minus(String(Number(x.toPrecision(4))));
  return minus(x.toExponential(2));
}

export function exact(value: Numeric): string {
  const x = number(value);
  if (x === null) return '';
  if (!Number.isFinite(x) || x === 0) return short(x);
  return minus(String(x));
}

/** As many digits as the dtype holds, and no more. */
export function digits(value: Numeric, dtype: string): string {
  const x = number(value);
  if (x === null || !Number.isFinite(x) || Number.isInteger(x)) return exact(value);
  const places = /bfloat16|float8/.test(dtype) ? 4 : /float16|complex32/.test(dtype) ? 5 : /float32|complex64/.test(dtype) ? 9 : 17;
  return minus(String(Number(x.toPrecision(places))));
}

export function count(value: number): string {
  return value.toLocaleString('en');
}

export function bytes(size: number): string {
  const units = ['B', 'KB', 'MB', 'GB', 'TB'];
  let unit = 0;
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1000;
    unit++;
  }
  return `${unit ? size.toFixed(1) : size} ${units[unit]}`;
}

export function ratio(part: number, whole: number): string {
  return whole > 0 ? `${((100 * part) / whole).toFixed(part === whole ? 0 : 1)} %` : '';
}

function minus(text: string): string {
  return text.replace(/^-/, '−').replace('e-', 'e−').replace('e+', 'e');
}

/** The last parts of a path that fit; the beginning is what a reader can spare. */
export function tail(path: string, length = 36): string {
  return path.length <= length ? path : '…' + path.slice(path.length - length + 1);
}
