// What `ssh -L PORT:SOCKET` does: `node forward.mjs PORT SOCKET`.
import net from 'node:net';

const [port, path] = process.argv.slice(2);
net.createServer((near) => {
  const far = net.connect(path);
  near.pipe(far).pipe(near);
  near.on('error', () => far.destroy()).on('close', () => far.destroy());
  far.on('error', () => near.destroy()).on('close', () => near.destroy());
}).listen(Number(port), '127.0.0.1');
