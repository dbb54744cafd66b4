package holdfast;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.io.InterruptedIOException;
import java.net.SocketTimeoutException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;

/**
 * Spark's checkpoint files below a Holdfast root on an object store. All other paths are left to Spark's own manager.
 *
 * <ul>
 *   <li>An entry of a log is one PUT that succeeds only if there is no object. The condition is mandatory: a file system
 *       that does not know it refuses the write. After any error the object is read back: equal bytes mean that it was
 *       written, other bytes that another driver has written it. If it is absent, the PUT is repeated.
 *   <li>An entry never changes, so the last ones that this object has written are known to it. It reads them from memory.
 *       Before Spark adds an entry, it asks whether there is one. After the last one that this object has written, the
 *       answer is no without a request: if another driver has written it meanwhile, the PUT is refused.
 *   <li>A state file is one plain PUT of a name that is used once.
 *   <li>The first close or cancel is final, whether it fails or not.
 *   <li>Nothing is deleted: Holdfast removes what no checkpoint needs. Folders do not exist, so none are created.
 * </ul>
 */
public final class StoreFiles implements CheckpointFileManager {

  /** The addresses of Holdfast roots, separated by commas. */
  public static final String ROOTS = "spark.holdfast.store.roots";

  /** The class that serves all other paths, if the session has chosen one. */
  public static final String OTHERS = "spark.holdfast.store.others";

  private static final String CHOSEN = "spark.sql.streaming.checkpointFileManagerClass";
  private static final String ONLY_IF_ABSENT = "fs.option.create.conditional.overwrite";
  private static final String WITHOUT_LOOKING = "fs.s3a.create.performance";
  private static final int TRIES = 4;
  private static final long PAUSE_MS = 100;
  private static final long PATIENCE_MS = 10_000; // the connector itself repeats requests, for minutes

  private final Path root;
  private final FileSystem files;
  private final CheckpointFileManager others;
  private final OwnEntries own = new OwnEntries();

  public StoreFiles(Path path, Configuration conf) throws IOException {
    root = path;
    if (isBelowRoot(path, conf)) {
      files = path.getFileSystem(conf);
      others = null;
    } else {
      Configuration chosen = new Configuration(conf);
      String other = conf.get(OTHERS);
      if (other == null) {
        chosen.unset(CHOSEN);
      } else {
        chosen.set(CHOSEN, other);
      }
      files = null;
      others = CheckpointFileManager.create(path, chosen);
    }
  }

  private static boolean isBelowRoot(Path path, Configuration conf) {
    String place = path.toString();
    for (String each : conf.getTrimmedStrings(ROOTS)) {
      if (place.equals(each) || place.startsWith(each + "/")) {
        return true;
      }
    }
    return false;
  }

  /** Whether this manager serves its path, or leaves it to another one. */
  public boolean isOwn() {
    return others == null;
  }

  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
    return others == null ? new Entry(path, overwriteIfPossible) : others.createAtomic(path, overwriteIfPossible);
  }

  @Override
  public FSDataInputStream open(Path path) {
    if (others != null) {
      return others.open(path);
    }
    try {
      byte[] known = own.bytes(path);
      return known == null ? files.open(path) : new FSDataInputStream(new KnownBytes(known));
    } catch (IOException error) {
      throw unchecked(error);
    }
  }

  @Override
  public FileStatus[] list(Path path, PathFilter filter) {
    if (others != null) {
      return others.list(path, filter);
    }
    try {
      return files.listStatus(path, filter);
    } catch (FileNotFoundException missing) {
      return new FileStatus[0];
    } catch (IOException error) {
      throw unchecked(error);
    }
  }

  @Override
  public boolean exists(Path path) {
    if (others != null) {
      return others.exists(path);
    }
    if (own.bytes(path) != null) {
      return true;
    }
    if (own.isNext(path)) {
      return false;
    }
    try {
      return files.exists(path);
    } catch (IOException error) {
      throw unchecked(error);
    }
  }

  @Override
  public void mkdirs(Path path) {
    if (others != null) {
      others.mkdirs(path);
    }
  }

  @Override
  public void delete(Path path) {
    if (others != null) {
      others.delete(path);
    }
  }

  @Override
  public boolean isLocal() {
    return others != null && others.isLocal();
  }

  @Override
  public Path createCheckpointDirectory() {
    return others == null ? files.makeQualified(root) : others.createCheckpointDirectory();
  }

  @Override
  public void close() {
    if (others != null) {
      others.close();
    }
  }

  private void put(Path path, Spool content, boolean onlyIfAbsent) throws IOException {
    FSDataOutputStreamBuilder<?, ?> builder = files.createFile(path).create().overwrite(true);
    builder.opt(WITHOUT_LOOKING, "true");
    if (onlyIfAbsent) {
      builder.must(ONLY_IF_ABSENT, "true");
    }
    try (InputStream in = content.read(); FSDataOutputStream out = builder.build()) {
      try {
        in.transferTo(out);
      } catch (Throwable failed) { // also an OutOfMemoryError
        out.abort(); // otherwise close would write what has arrived as if it were the whole file
        throw failed;
      }
    }
  }

  private void putIfAbsent(Path path, Spool content) throws IOException {
    IOException failed = null;
    long end = System.nanoTime() / 1_000_000 + PATIENCE_MS;
    for (int attempt = 0; attempt < TRIES && (attempt == 0 || System.nanoTime() / 1_000_000 < end); attempt++) {
      try {
        put(path, content, true);
        return;
      } catch (SocketTimeoutException error) { // a kind of the next one, but nobody has interrupted this thread
        failed = error;
      } catch (InterruptedIOException stopped) {
        throw stopped;
      } catch (IOException error) {
        failed = error;
      }
      try (InputStream there = files.open(path)) {
        if (content.equals(there)) {
          return;
        }
        FileAlreadyExistsException taken = new FileAlreadyExistsException(path + " was written by another driver");
        taken.initCause(failed);
        throw taken;
      } catch (FileNotFoundException absent) {
        pause(PAUSE_MS << attempt);
      }
    }
    throw failed;
  }

  private static void pause(long millis) throws IOException {
    try {
      Thread.sleep(millis);
    } catch (InterruptedException stopped) {
      Thread.currentThread().interrupt();
      throw new InterruptedIOException("interrupted while a file was written");
    }
  }

  /** Spark's interface, written in Scala, declares no exceptions, and its callers expect those of Hadoop. */
  @SuppressWarnings("unchecked")
  private static <E extends Throwable> RuntimeException unchecked(Throwable error) throws E {
    throw (E) error;
  }

  /** One file, of which nothing is visible before it is closed. */
  private final class Entry extends CheckpointFileManager.CancellableFSDataOutputStream {

    private final Path path;
    private final boolean overwrites;
    private final Spool content;
    private boolean ended;

    Entry(Path path, boolean overwrites) {
      this(path, overwrites, new Spool());
    }

    private Entry(Path path, boolean overwrites, Spool content) {
      super(content);
      this.path = path;
      this.overwrites = overwrites;
      this.content = content;
    }

    @Override
    public synchronized void close() throws IOException {
      if (ended) {
        return;
      }
      ended = true;
      try {
        if (overwrites) {
          put(path, content, false);
        } else {
          putIfAbsent(path, content);
          own.add(path, content);
        }
      } finally {
        content.close();
      }
    }

    @Override
    public synchronized void cancel() {
      ended = true;
      content.close();
    }
  }
}
