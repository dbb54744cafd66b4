package holdfast;

import java.io.IOException;
import java.nio.file.Files;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's file system of this machine, checksums and all, but for one thing: without its native library, which Spark
 * does not bring, Hadoop starts a process of chmod for every file and folder that it makes. This one asks the system.
 */
public final class LocalFiles extends LocalFileSystem {

  public LocalFiles() {
    super(new Raw());
  }

  private static final class Raw extends RawLocalFileSystem {

    /** What the command leaves alone on a folder: whoever shares it by its group has set them. */
    private static final int SET_IDS = 06000;

    @Override
    public void setPermission(Path path, FsPermission permission) throws IOException {
      try {
        java.nio.file.Path file = pathToFile(path).toPath();
        int mode = permission.toShort();
        if (Files.isDirectory(file)) {
          mode |= (int) Files.getAttribute(file, "unix:mode") & SET_IDS;
        }
        Files.setAttribute(file, "unix:mode", mode);
      } catch (UnsupportedOperationException | IllegalArgumentException notHere) {
        super.setPermission(path, permission);
      }
    }
  }
}
