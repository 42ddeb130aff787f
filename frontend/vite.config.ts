// One bundle for both uses: the server serves these files, and `compare --html` puts them into one file (report/html.py).
// Names carry no hash and nothing depends on the machine or the day, so that a rebuild gives the same bytes.
import { defineConfig } from 'vite';

export default defineConfig({
  base: './',
  build: {
    outDir: '../src/numscope/view/static',
    emptyOutDir: true,
    target: 'es2022',
    modulePreload: false,
    cssCodeSplit: false,
    assetsInlineLimit: 0,
    rollupOptions: {
      output: { entryFileNames: 'app.js', assetFileNames: 'app.[ext]', codeSplitting: false },
    },
  },
  worker: { format: 'iife', rollupOptions: { output: { entryFileNames: 'worker.js' } } },
});
