package io.forebay.hadoop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;

import io.forebay.core.ForebayClient;
import io.forebay.core.Preferred;
import java.lang.reflect.Proxy;
import java.nio.file.Path;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.junit.Test;

/** Which node is named. */
public class LocationsTest {
  /** A cluster that names what it is asked for. */
  private static Contents cluster() {
    Class<?>[] contents = {Contents.class};
    return (Contents) Proxy.newProxyInstance(LocationsTest.class.getClassLoader(), contents, (proxy, method, arguments) -> switch (method.getName()) {
      case "mounts" -> List.of(new ForebayClient.Mount("pfs", "/pfs", 1 << 20, 1 << 20));
      case "locate" -> List.of(new ForebayClient.Location(0, 5, List.of(arguments[3].toString())));
      default -> throw new AssertionError(method.toString());
    });
  }

  @Test
  public void theConfigurationDecidesWhichIsAskedFor() throws Exception {
    FileStatus file = new FileStatus(5, false, 1, 1 << 20, 0, new org.apache.hadoop.fs.Path("/pfs/f"));
    for (Preferred preferred : Preferred.values()) {
      BlockLocation[] found = new Locations(cluster(), preferred).of("/pfs/f", file, 0, 5);
      assertArrayEquals(new String[] {preferred.toString()}, found[0].getHosts());
    }
  }

  @Test
  public void aClusterOfOneNamesItselfInBothWaysWithAndWithoutALookAtTheFile() throws Exception {
    TestAgent agent = TestAgent.shared();
    Path path = agent.file("locations/f", new byte[100]);
    org.apache.hadoop.fs.Path name = new org.apache.hadoop.fs.Path("forebay://" + path);
    String host = null;
    for (String locations : List.of("owner", "balanced", "storage")) {
      Configuration conf = agent.configuration();
      conf.set(ForebayConfig.LOCATIONS, locations);
      try (FileSystem fs = FileSystem.newInstance(name.toUri(), conf)) {
        for (FileStatus status : List.of(fs.getFileStatus(name), fs.listStatus(name.getParent())[0])) {
          BlockLocation[] found = fs.getFileBlockLocations(status, 0, 100);
          assertEquals(1, found.length);
          assertEquals(1, found[0].getHosts().length);
          host = host == null ? found[0].getHosts()[0] : host;
          assertEquals(host, found[0].getHosts()[0]);
        }
      }
    }
  }
}
