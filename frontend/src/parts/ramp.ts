// Colours of a heatmap: blue – paper – red for signed values, paper to ink for sizes. NaN and infinities stand out.

export type Rgb = [number, number, number];
const NEGATIVE: Rgb[] = [[33, 102, 172], [146, 197, 222]];
const POSITIVE: Rgb[] = [[244, 165, 130], [178, 24, 43]];
export const NAN: Rgb = [230, 0, 230];
export const INFINITE: Rgb = [255, 200, 0];

function mix(a: Rgb, b: Rgb, f: number): Rgb {
  return [a[0] + (b[0] - a[0]) * f, a[1] + (b[1] - a[1]) * f, a[2] + (b[2] - a[2]) * f];
}

export function ramp(value: number, size: number, middle: Rgb): Rgb {
  if (Number.isNaN(value)) return NAN;
  if (!Number.isFinite(value)) return INFINITE;
  if (size === 0 || value === 0) return middle;
  const f = Math.min(1, Math.abs(value) / size) ** 0.6; // a gentle curve: small differences are seen too
  const [near, far] = value < 0 ? [NEGATIVE[1]!, NEGATIVE[0]!] : [POSITIVE[0]!, POSITIVE[1]!];
  return f < 0.5 ? mix(middle, near, f * 2) : mix(near, far, (f - 0.5) * 2);
}
