import type { VerdictWord } from '../data/types';
import { VERDICTS } from '../verdict';

/** Draw one point in the form of its verdict; where there are thousands, a plain square. */
export function mark(ctx: CanvasRenderingContext2D, word: VerdictWord | '', x: number, y: number, size: number, plain: boolean): void {
  const half = size / 2;
  if (plain || !VERDICTS.includes(word as VerdictWord)) {
    ctx.fillRect(x - half, y - half, size, size);
    return;
  }
  ctx.beginPath();
  if (word === 'origin') {
    // a star with a rim, so that it is found among thousands
    for (let k = 0; k < 10; k++) {
      const angle = (Math.PI * k) / 5 - Math.PI / 2;
      const r = k % 2 ? half * 0.5 : half * 1.15;
      ctx.lineTo(x + r * Math.cos(angle), y + r * Math.sin(angle));
    }
  } else if (word === 'inherited') {
    ctx.moveTo(x - half, y + half);
    ctx.lineTo(x + half, y + half);
    ctx.lineTo(x, y - half);
  } else if (word === 'unmatched') {
    ctx.moveTo(x, y - half);
    ctx.lineTo(x + half, y);
    ctx.lineTo(x, y + half);
    ctx.lineTo(x - half, y);
  } else if (word === 'identical') {
    ctx.rect(x - half, y - half * 0.6, size, size * 0.6);
  } else {
    ctx.arc(x, y, half, 0, 2 * Math.PI);
  }
  ctx.closePath();
  if (word === 'origin') ctx.stroke();
  ctx.fill();
}
