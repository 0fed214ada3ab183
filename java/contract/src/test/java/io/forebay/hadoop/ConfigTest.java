package io.forebay.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import io.forebay.core.ClientOptions;
import io.forebay.core.Preferred;
import io.forebay.core.ReadMode;
import io.forebay.core.WriteMode;
import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.TreeSet;
import java.util.function.Consumer;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.junit.Test;

/** The configuration: its defaults, what it refuses, and that docs/hadoop.md has all of it. */
public class ConfigTest {
  private static ForebayConfig with(String key, String value) {
    Configuration conf = new Configuration(false);
    conf.set(key, value);
    return new ForebayConfig(conf);
  }

  @Test
  public void defaults() {
    ForebayConfig config = new ForebayConfig(new Configuration(false));
    assertEquals(ReadMode.CACHED, config.readMode());
    assertEquals(WriteMode.THROUGH, config.writeMode());
    assertEquals(ClientOptions.DEFAULT, config.client());
    assertEquals(64 << 20, config.mapWindowBytes());
    assertTrue(config.locality());
    assertEquals(Preferred.OWNER, config.preferred());
    assertNull(config.roots());
  }

  @Test
  public void whatIsWrittenIsTaken() {
    assertEquals(ReadMode.PFS_ONLY, with(ForebayConfig.READ_MODE, "bypass").readMode());
    assertEquals(WriteMode.MEMORY_ONLY, with(ForebayConfig.WRITE_MODE, " memory ").writeMode());
    assertEquals(Preferred.BALANCED, with(ForebayConfig.LOCATIONS, "balanced").preferred());
    assertEquals(Preferred.STORAGE, with(ForebayConfig.LOCATIONS, "storage").preferred());
    assertEquals(500, with(ForebayConfig.DEADLINE, "500ms").client().deadlineMs());
    assertEquals(10_000, with(ForebayConfig.DEADLINE, "10s").client().deadlineMs());
    assertEquals(0, with(ForebayConfig.READ_AHEAD, "0").client().readAheadBytes());
    assertEquals(8 << 20, with(ForebayConfig.READ_AHEAD, "8m").client().readAheadBytes());
    assertEquals(1000, with(ForebayConfig.TRUSTED_UID, " 1000 ").client().trustedUid());
    assertEquals(-1, with(ForebayConfig.TRUSTED_UID, "-1").client().trustedUid());
    assertEquals(0, with(ForebayConfig.MAP_WINDOW, "0").mapWindowBytes());
    assertEquals(1 << 30, with(ForebayConfig.MAP_WINDOW, "1g").mapWindowBytes());
    assertTrue(with(ForebayConfig.LOCALITY, " True ").locality());
    assertFalse(with(ForebayConfig.LOCALITY, "false").locality());
    assertEquals(List.of("/pfs/a", "/b"), with(ForebayConfig.ROOTS, " /pfs/a/ ,/b").roots());
  }

  @Test
  public void whatIsNotUnderstoodIsRefusedByName() {
    assertRefused(ForebayConfig.READ_MODE, ForebayConfig::readMode, "fast", "");
    assertRefused(ForebayConfig.WRITE_MODE, ForebayConfig::writeMode, "back");
    assertRefused(ForebayConfig.READ_AHEAD, ForebayConfig::client, "much", "");
    assertRefused(ForebayConfig.DEADLINE, ForebayConfig::client, "soon", "10 apples", "-5s", "0", "999us");
    assertRefused(ForebayConfig.TRUSTED_UID, ForebayConfig::client, "root", "", "-2", "4294967295");
    assertRefused(ForebayConfig.MAP_WINDOW, ForebayConfig::mapWindowBytes, "1 window", "", "-1", "2g");
    assertRefused(ForebayConfig.LOCALITY, ForebayConfig::locality, "maybe", "", "1");
    assertRefused(ForebayConfig.LOCATIONS, ForebayConfig::preferred, "evenly");
    assertRefused(ForebayConfig.ROOTS, ForebayConfig::roots, "pfs");
  }

  private static void assertRefused(String key, Consumer<ForebayConfig> read, String... values) {
    for (String value : values) {
      ForebayConfig config = with(key, value);
      IllegalArgumentException e = assertThrows(key + " = " + value, IllegalArgumentException.class, () -> read.accept(config));
      assertTrue(e.getMessage(), e.getMessage().startsWith(key + " = \"" + value + "\""));
    }
  }

  @Test
  public void itIsRefusedWhenTheFileSystemIsMadeAndNotWhenAFileIsOpened() {
    for (String key : List.of(ForebayConfig.READ_MODE, ForebayConfig.WRITE_MODE, ForebayConfig.READ_AHEAD, ForebayConfig.DEADLINE,
        ForebayConfig.TRUSTED_UID, ForebayConfig.MAP_WINDOW, ForebayConfig.LOCALITY, ForebayConfig.LOCATIONS)) {
      Configuration conf = new Configuration();
      conf.set(ForebayConfig.SOCKET, "none");
      conf.set(key, "maybe");
      IllegalArgumentException e =
          assertThrows(key, IllegalArgumentException.class, () -> FileSystem.newInstance(java.net.URI.create("forebay:///"), conf));
      assertTrue(e.getMessage(), e.getMessage().startsWith(key + " = \"maybe\""));
    }
  }

  @Test
  public void theGuideHasARowForEachKey() throws Exception {
    TreeSet<String> keys = new TreeSet<>();
    for (Field field : ForebayConfig.class.getFields()) {
      keys.add((String) field.get(null));
    }
    TreeSet<String> explained = new TreeSet<>();
    Matcher row = Pattern.compile("(?m)^\\| `(fs\\.forebay[^`]*)` \\|").matcher(Files.readString(Path.of("../../docs/hadoop.md")));
    while (row.find()) {
      explained.add(row.group(1));
    }
    assertTrue(keys.size() >= 9);
    assertEquals(keys, explained);
  }
}
