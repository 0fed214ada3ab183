package io.forebay.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import io.forebay.core.ClientOptions;
import io.forebay.core.ReadMode;
import io.forebay.core.WriteMode;
import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
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
    assertFalse(config.balanced());
    assertNull(config.roots());
  }

  @Test
  public void whatIsWrittenIsTaken() {
    assertEquals(ReadMode.PFS_ONLY, with(ForebayConfig.READ_MODE, "bypass").readMode());
    assertEquals(WriteMode.MEMORY_ONLY, with(ForebayConfig.WRITE_MODE, " memory ").writeMode());
    assertTrue(with(ForebayConfig.LOCATIONS, "balanced").balanced());
    assertEquals(500, with(ForebayConfig.DEADLINE, "500ms").client().deadlineMs());
    assertEquals(10_000, with(ForebayConfig.DEADLINE, "10s").client().deadlineMs());
    assertEquals(0, with(ForebayConfig.READ_AHEAD, "0").client().readAheadBytes());
    assertEquals(8 << 20, with(ForebayConfig.READ_AHEAD, "8m").client().readAheadBytes());
    assertEquals(List.of("/pfs/a", "/b"), with(ForebayConfig.ROOTS, " /pfs/a/ ,/b").roots());
  }

  @Test
  public void whatIsNotUnderstoodIsRefusedByName() {
    List<Runnable> refused = List.of(() -> with(ForebayConfig.READ_MODE, "fast").readMode(),
        () -> with(ForebayConfig.WRITE_MODE, "back").writeMode(), () -> with(ForebayConfig.READ_AHEAD, "much").client(),
        () -> with(ForebayConfig.MAP_WINDOW, "1 window").mapWindowBytes(), () -> with(ForebayConfig.ROOTS, "pfs").roots(),
        () -> with(ForebayConfig.LOCATIONS, "evenly").balanced());
    List<String> keys = List.of(ForebayConfig.READ_MODE, ForebayConfig.WRITE_MODE, ForebayConfig.READ_AHEAD, ForebayConfig.MAP_WINDOW,
        ForebayConfig.ROOTS, ForebayConfig.LOCATIONS);
    for (int i = 0; i < keys.size(); i++) {
      IllegalArgumentException e = assertThrows(keys.get(i), IllegalArgumentException.class, refused.get(i)::run);
      assertTrue(e.getMessage(), e.getMessage().startsWith(keys.get(i) + " = \""));
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
