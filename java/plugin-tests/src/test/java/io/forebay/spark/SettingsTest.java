package io.forebay.spark;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNull;

import org.apache.hadoop.conf.Configuration;
import org.junit.Test;

import io.forebay.hadoop.ForebayConfig;

/** What the plug-in sets for an application, and what it leaves as the user has it. */
public class SettingsTest {
  private static Configuration settled(String planner, String... set) {
    Configuration conf = new Configuration(false);
    for (int i = 0; i < set.length; i += 2) {
      conf.set(set[i], set[i + 1]);
    }
    ForebayPlugin.Driver.settle(conf, planner);
    return conf;
  }

  @Test
  public void waves() {
    for (String planner : new String[] {"no-action", ""}) {
      Configuration conf = settled(planner);
      assertNull(conf.get(ForebayConfig.READ_MODE));
      assertNull(conf.get(ForebayConfig.LOCALITY));
      assertEquals("balanced", conf.get(ForebayConfig.LOCATIONS));
    }
  }

  /** The baseline reads as Spark does without Forebay: the PFS, and what is next wherever a core is free. */
  @Test
  public void theBaselineHasNoHomes() {
    Configuration conf = settled("naive-bb");
    assertEquals("bypass", conf.get(ForebayConfig.READ_MODE));
    assertEquals("false", conf.get(ForebayConfig.LOCALITY));
  }

  @Test
  public void whatTheUserHasSetStays() {
    Configuration conf = settled("naive-bb", ForebayConfig.READ_MODE, "cached", ForebayConfig.LOCALITY, "true", ForebayConfig.LOCATIONS, "owner");
    assertEquals("cached", conf.get(ForebayConfig.READ_MODE));
    assertEquals("true", conf.get(ForebayConfig.LOCALITY));
    assertEquals("owner", conf.get(ForebayConfig.LOCATIONS));
  }
}
