package holdfast;

import java.io.IOException;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.Arrays;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.SparkEnv;
import org.apache.spark.deploy.SparkHadoopUtil;
import org.apache.spark.sql.api.java.UDF3;

/**
 * A function for one task per core: whether this executor has a class, and can write, read and delete below a path with
 * its own credentials. Returns an empty text, or what is wrong, after the name of the host.
 */
public final class ExecutorProbe implements UDF3<String, String, String, String> {

  private static final long serialVersionUID = 1L;

  @Override
  public String call(String className, String folder, String settings) {
    String host = "an unnamed host";
    try {
      host = hostName();
      Class.forName(className, true, Thread.currentThread().getContextClassLoader());
      use(new Path(folder, UUID.randomUUID().toString()), settings);
      return "";
    } catch (ClassNotFoundException missing) {
      return host + ": the Java class " + missing.getMessage() + " is missing";
    } catch (Exception | LinkageError failed) {
      return host + ": Java cannot use the object store: " + failed;
    }
  }

  /** The kernel's name of this machine: a resolver may know another one, or none. */
  private static String hostName() throws IOException {
    java.nio.file.Path kernel = java.nio.file.Path.of("/proc/sys/kernel/hostname");
    if (Files.isReadable(kernel)) {
      return Files.readString(kernel).strip();
    }
    return InetAddress.getLocalHost().getHostName();
  }

  private static void use(Path file, String settings) throws IOException {
    Configuration conf = SparkHadoopUtil.get().newConfiguration(SparkEnv.get().conf());
    for (String each : settings.split("\n")) {
      String[] pair = each.split("=", 2);
      if (pair.length == 2) {
        conf.set(pair[0], pair[1]);
      }
    }
    try (FileSystem store = FileSystem.newInstance(file.toUri(), conf)) { // Spark must not find this one in the cache
      byte[] given = file.getName().getBytes(StandardCharsets.UTF_8);
      try (FSDataOutputStream out = store.create(file, false)) {
        out.write(given);
      }
      byte[] found = new byte[given.length];
      try (FSDataInputStream in = store.open(file)) {
        in.readFully(found);
      }
      if (!Arrays.equals(given, found)) {
        throw new IOException("other bytes came back from " + file);
      }
      store.delete(file, false);
    }
  }
}
