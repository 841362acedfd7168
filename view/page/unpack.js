// SPDX-License-Identifier: Apache-2.0
// Bytes that stand in the page: deflated, in base64, in the element of that id.

// The script runs while the browser still reads what follows it.
const isRead = new Promise((resolve) => {
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", resolve);
  else resolve();
});

export async function unpack(id) {
  if (!document.getElementById(id)?.nextSibling) await isRead; // an element that something follows is whole
  const text = atob(document.getElementById(id).textContent);
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) packed[i] = text.charCodeAt(i);
  const stream = new Response(packed).body.pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
