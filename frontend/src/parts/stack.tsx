import { useState } from 'preact/hooks';
import type { Frames } from '../data/types';
import { t } from '../i18n';

const LIBRARY = /site-packages|dist-packages|[/\\]lib[/\\]python3|<frozen|importlib/;

/** A call stack as Python prints it, innermost last; the user's own innermost line stands out, libraries step back. */
export function Stack({ frames, user, most = 99 }: { frames: Frames[]; user?: number | null; most?: number }) {
  const [whole, setWhole] = useState(false);
  if (!frames.length) return null;
  const marked = frames.map((frame, i) => ({ ...frame, user: frame.user ?? i === user }));
  const own = marked.filter((frame) => frame.user || !LIBRARY.test(frame.file)).slice(-most);
  const hidden = marked.length - own.length;
  const shown = whole || !own.length ? marked : own;
  return (
    <>
      <div class="code" role="group" aria-label={t('Call stack')}>
        {shown.map((frame, i) => (
          <div class={`frame ${frame.user ? 'user' : ''}`} key={i}>
            <span class="where" title={`${frame.file}:${frame.line}`}>
              {near(frame.file)}:{frame.line} {frame.function && `· ${frame.function}`}
            </span>
            {frame.code && <span class="text">{frame.code.trim()}</span>}
          </div>
        ))}
      </div>
      {hidden > 0 && own.length > 0 && (
        <button class="tool small" onClick={() => setWhole(!whole)}>
          {whole ? t('Show fewer frames') : hidden === 1 ? t('Show 1 more frame') : t('Show {0} more frames', hidden)}
        </button>
      )}
    </>
  );
}

/** The folder and the name of a file: the rest of the path is in the title. */
export function near(file: string): string {
  return file.split(/[/\\]/).slice(-2).join('/');
}
