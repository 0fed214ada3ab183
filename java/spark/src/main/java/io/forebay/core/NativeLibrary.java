package io.forebay.core;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Locale;

/**
 * Loads libforebay_jni.so: the one named by the system property {@value #PROPERTY}, else the one
 * inside the jar, else one in {@code java.library.path}.
 *
 * <p>The one inside is copied to a file of its own in {@code java.io.tmpdir}, loaded, and removed
 * at once, so nothing is left behind and two programs, or two class loaders of one, never meet.
 * Where files there may not be executed, unpack the library once and name it by the property.
 */
public final class NativeLibrary {
  /** System property that names the library file. */
  public static final String PROPERTY = "forebay.native";

  /** Null once it is loaded. */
  private static final Throwable FAILURE = load();

  private NativeLibrary() {}

  /** Why the library could not be loaded; null if it was. */
  public static Throwable failure() {
    return FAILURE;
  }

  private static Throwable load() {
    try {
      String named = System.getProperty(PROPERTY);
      if (named != null) {
        System.load(Path.of(named).toAbsolutePath().toString());
        return null;
      }
      try (InputStream packed = NativeLibrary.class.getResourceAsStream(resource())) {
        if (packed == null) {
          System.loadLibrary("forebay_jni");
        } else {
          loadCopy(packed);
        }
      }
      return null;
    } catch (IOException | LinkageError | SecurityException e) {
      return e;
    }
  }

  private static void loadCopy(InputStream packed) throws IOException {
    Path copy = Files.createTempFile("libforebay_jni-", ".so");
    try {
      Files.copy(packed, copy, StandardCopyOption.REPLACE_EXISTING);
      System.load(copy.toString());
    } finally {
      Files.deleteIfExists(copy);
    }
  }

  /** Path inside the jar, by machine. */
  private static String resource() {
    String system = System.getProperty("os.name").toLowerCase(Locale.ROOT);
    String machine = switch (System.getProperty("os.arch")) {
      case "amd64", "x86_64" -> "x86_64";
      case "aarch64", "arm64" -> "aarch64";
      default -> System.getProperty("os.arch");
    };
    return "/io/forebay/native/" + system + "-" + machine + "/libforebay_jni.so";
  }
}
