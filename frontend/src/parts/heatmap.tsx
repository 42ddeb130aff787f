import { useEffect, useRef, useState } from 'preact/hooks';
import { short } from '../data/format';
import type { Frame } from '../data/frame';
import { server } from '../data/source';
import type { TensorAbout } from '../data/types';
import { t } from '../i18n';
import { theme } from '../state';
import { ramp, type Rgb } from './ramp';

/** Any two dimensions of a tensor as a picture, the others by sliders. */
export function Heatmap({ row, slot, about }: { row: number; slot: string; about: TensorAbout }) {
  const rank = about.shape.length;
  const choices = about.comparable ? ['difference', 'relative', 'ulp', 'target', 'reference'] : [about.target ? 'target' : '', about.reference ? 'reference' : ''].filter(Boolean);
  const [what, setWhat] = useState(choices[0]!);
  const [rows, setRows] = useState(Math.max(0, rank - 2));
  const [columns, setColumns] = useState(Math.max(rank - 1, 1));
  const [fixed, setFixed] = useState<number[]>(about.shape.map(() => 0));
  const [frame, setFrame] = useState<Frame | null>(null);
  const [fault, setFault] = useState('');
  const [spot, setSpot] = useState('');
  const canvas = useRef<HTMLCanvasElement>(null);
  const scale = useRef<HTMLCanvasElement>(null);
  const shade = theme.value;

  useEffect(() => {
    let gone = false;
    server.plane(row, slot, what, rows, columns, fixed).then(
      (found) => !gone && (setFrame(found), setFault('')),
      (error: Error) => !gone && setFault(error.message),
    );
    return () => {
      gone = true;
    };
  }, [row, slot, what, rows, columns, fixed.join()]);

  const header = frame?.header as { width: number; height: number; full: [number, number]; low: number; high: number } | undefined;
  const size = header ? Math.max(Math.abs(header.low), Math.abs(header.high)) : 0;
  useEffect(() => {
    if (!frame || !header) return;
    const middle: Rgb = shade === 'dark' ? [38, 41, 47] : [247, 247, 245];
    const values = frame.columns.get('value')!.values;
    paint(canvas.current!, header.width, header.height, (i) => ramp(values[i]!, size, middle));
    paint(scale.current!, 128, 1, (i) => ramp(((i - 63.5) / 64) * size, size, middle));
  }, [frame, shade]);

  const onMove = (event: MouseEvent) => {
    if (!frame || !header) return;
    const box = canvas.current!.getBoundingClientRect();
    const x = Math.min(header.width - 1, Math.floor(((event.clientX - box.left) / box.width) * header.width));
    const y = Math.min(header.height - 1, Math.floor(((event.clientY - box.top) / box.height) * header.height));
    const fx = Math.floor((x * header.full[1]) / header.width);
    const fy = Math.floor((y * header.full[0]) / header.height);
    setSpot(`[${fy}, ${fx}] ${short(frame.columns.get('value')!.values[y * header.width + x])}`);
  };
  const aspect = header ? Math.min(Math.max(header.full[0] / header.full[1], 0.06), 1.15) : 0.5;
  return (
    <div class="heatmap">
      <div class="row">
        <span class="segments" role="group" aria-label={t('What to show')}>
          {choices.map((name) => (
            <button key={name} aria-pressed={name === what} onClick={() => setWhat(name)}>
              {t(name === 'ulp' ? 'ULP' : name)}
            </button>
          ))}
        </span>
        {rank >= 2 && (
          <>
            <Dimension title={t('down')} value={rows} other={columns} shape={about.shape} choose={setRows} />
            <Dimension title={t('across')} value={columns} other={rows} shape={about.shape} choose={setColumns} />
          </>
        )}
      </div>
      {rank > 2 && (
        <div class="sliders">
          {about.shape.map((length, dim) =>
            dim === rows || dim === columns || length < 2 ? null : (
              <>
                <label for={`dim${dim}`}>{t('dim {0}', dim)}</label>
                <input
                  id={`dim${dim}`}
                  type="range"
                  min={0}
                  max={length - 1}
                  value={fixed[dim]}
                  onInput={(e) => setFixed(fixed.map((at, i) => (i === dim ? Number(e.currentTarget.value) : at)))}
                />
                <span class="mono">
                  {fixed[dim]} / {length}
                </span>
              </>
            ),
          )}
        </div>
      )}
      {fault && <div class="error">{fault}</div>}
      <canvas ref={canvas} style={{ aspectRatio: `${1 / aspect}` }} onMouseMove={onMove} onMouseLeave={() => setSpot('')} data-testid="heatmap" aria-label={t(what)} role="img" />
      <div class="scale">
        <span>{short(-size)}</span>
        <canvas ref={scale} />
        <span>{short(size)}</span>
        <span style={{ minWidth: '150px', textAlign: 'right' }}>{spot || (header ? `${header.full[0]} × ${header.full[1]}` : '')}</span>
      </div>
    </div>
  );
}

function Dimension(props: { title: string; value: number; other: number; shape: number[]; choose: (dim: number) => void }) {
  return (
    <label class="check">
      {props.title}
      <select value={String(props.value)} onChange={(e) => props.choose(Number(e.currentTarget.value))}>
        {props.shape.map((length, dim) => (
          <option key={dim} value={String(dim)} disabled={dim === props.other}>
            {t('dim {0}', dim)} ({length})
          </option>
        ))}
      </select>
    </label>
  );
}

function paint(canvas: HTMLCanvasElement, width: number, height: number, at: (i: number) => Rgb): void {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext('2d')!;
  const image = context.createImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    const [r, g, b] = at(i);
    image.data.set([r, g, b, 255], i * 4);
  }
  context.putImageData(image, 0, 0);
}
