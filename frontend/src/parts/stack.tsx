import type { Frames } from '../data/types';
import { t } from '../i18n';

/** A call stack as Python prints it, innermost last; the user's own innermost line stands out. */
export function Stack({ frames, user }: { frames: Frames[]; user?: number | null }) {
  if (!frames.length) return null;
  return (
    <div class="code" role="group" aria-label={t('Call stack')}>
      {frames.map((frame, i) => (
        <div class={`frame ${(frame.user ?? i === user) ? 'user' : ''}`} key={i}>
          <span class="where">
            {frame.file}:{frame.line} {frame.function && `· ${frame.function}`}
          </span>
          {frame.code && <span class="text">{frame.code.trim()}</span>}
        </div>
      ))}
    </div>
  );
}
