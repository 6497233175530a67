/** Bytes out of base64 of zlib's format; a fresh buffer, so that numbers in it are aligned. */
export async function inflate(text: string): Promise<Uint8Array<ArrayBuffer>> {
  const letters = atob(text);
  const packed = new Uint8Array(letters.length);
  for (let place = 0; place < packed.length; place++) packed[place] = letters.charCodeAt(place);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
