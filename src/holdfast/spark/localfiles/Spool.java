package holdfast;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;

/** The bytes of a file that is being written: in memory, and on a local disk from 8 MiB on. */
final class Spool extends OutputStream {

  static final int MOST_IN_MEMORY = 8 << 20;
  private static final int BUFFER = 1 << 16;

  private ByteArrayOutputStream memory = new ByteArrayOutputStream();
  private Path path;
  private OutputStream disk;
  private boolean closed;

  @Override
  public void write(int value) throws IOException {
    write(new byte[] {(byte) value}, 0, 1);
  }

  @Override
  public void write(byte[] bytes, int from, int count) throws IOException {
    if (closed) {
      throw new IOException("the file was closed or cancelled");
    }
    if (disk == null && memory.size() + (long) count > MOST_IN_MEMORY) {
      path = Files.createTempFile("holdfast-", ".part");
      disk = Files.newOutputStream(path);
      memory.writeTo(disk);
      memory = null;
    }
    if (disk == null) {
      memory.write(bytes, from, count);
    } else {
      disk.write(bytes, from, count);
    }
  }

  /** Whether the bytes are on a disk. */
  boolean isOnDisk() {
    return disk != null;
  }

  /** Returns all bytes that were written. */
  InputStream read() throws IOException {
    if (disk == null) {
      return new ByteArrayInputStream(memory.toByteArray());
    }
    disk.flush();
    return Files.newInputStream(path);
  }

  /** Whether a stream has exactly the bytes that were written. */
  boolean equals(InputStream other) throws IOException {
    try (InputStream own = read()) {
      byte[] ours;
      do {
        ours = own.readNBytes(BUFFER);
        if (!java.util.Arrays.equals(ours, other.readNBytes(Math.max(ours.length, 1)))) {
          return false;
        }
      } while (ours.length > 0);
      return true;
    }
  }

  /** Removes the bytes; harmless when called twice. */
  @Override
  public void close() {
    closed = true;
    memory = null;
    if (disk != null) {
      try {
        disk.close();
        Files.deleteIfExists(path);
      } catch (IOException ignored) {
        path.toFile().deleteOnExit();
      }
    }
  }
}
