package holdfast;

import java.io.EOFException;
import java.io.IOException;
import org.apache.hadoop.fs.FSInputStream;

/** A file whose bytes are in memory. */
final class KnownBytes extends FSInputStream {

  private final byte[] bytes;
  private int at;

  KnownBytes(byte[] bytes) {
    this.bytes = bytes;
  }

  @Override
  public int read() {
    return at < bytes.length ? bytes[at++] & 0xff : -1;
  }

  @Override
  public int read(byte[] into, int from, int most) {
    if (most == 0) {
      return 0;
    }
    int count = Math.min(most, bytes.length - at);
    if (count <= 0) {
      return -1;
    }
    System.arraycopy(bytes, at, into, from, count);
    at += count;
    return count;
  }

  @Override
  public int available() {
    return bytes.length - at;
  }

  @Override
  public void seek(long place) throws IOException {
    if (place < 0 || place > bytes.length) {
      throw new EOFException("there is no byte " + place + " of " + bytes.length);
    }
    at = (int) place;
  }

  @Override
  public long getPos() {
    return at;
  }

  @Override
  public boolean seekToNewSource(long place) {
    return false;
  }
}
