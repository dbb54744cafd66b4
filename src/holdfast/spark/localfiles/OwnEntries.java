package holdfast;

import java.io.IOException;
import java.io.InputStream;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.fs.Path;

/** The last entries of logs that a file manager has written. Nothing replaces them, so they need not be read again. */
final class OwnEntries {

  private static final Pattern ENTRY = Pattern.compile("(\\d{1,18})(\\.compact)?");
  private static final int KEPT = 16; // Spark reads ten to write a compacted one
  private static final int LARGEST = 1 << 16;

  private final Map<Path, byte[]> entries =
      new LinkedHashMap<>() {
        private static final long serialVersionUID = 1L;

        @Override
        protected boolean removeEldestEntry(Map.Entry<Path, byte[]> eldest) {
          return size() > KEPT;
        }
      };
  private String next; // the folder and number after the last one

  /** Records an entry that the store has confirmed. Another file is ignored. */
  synchronized void add(Path path, Spool content) throws IOException {
    next = numbered(path, 1);
    if (next == null || content.isOnDisk()) {
      return;
    }
    try (InputStream in = content.read()) {
      byte[] bytes = in.readNBytes(LARGEST + 1);
      if (bytes.length <= LARGEST) {
        entries.put(path, bytes);
      }
    }
  }

  /** Returns the bytes of an entry, or null if they are not known. */
  synchronized byte[] bytes(Path path) {
    return entries.get(path);
  }

  /** Whether a path is the entry after the last one, compacted or not. */
  synchronized boolean isNext(Path path) {
    String asked = numbered(path, 0);
    return asked != null && asked.equals(next);
  }

  private static String numbered(Path path, int further) {
    Matcher name = ENTRY.matcher(path.getName());
    return name.matches() ? path.getParent() + "/" + (Long.parseLong(name.group(1)) + further) : null;
  }
}
