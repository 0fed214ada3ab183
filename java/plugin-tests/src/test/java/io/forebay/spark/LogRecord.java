package io.forebay.spark;

import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;

import org.apache.logging.log4j.Level;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.core.LogEvent;
import org.apache.logging.log4j.core.Logger;
import org.apache.logging.log4j.core.appender.AbstractAppender;
import org.apache.logging.log4j.core.config.Property;

/** What the plug-in logs, of all levels down to DEBUG, from the beginning of this until its end. */
final class LogRecord implements AutoCloseable {
  private static final String NAME = "io.forebay.spark";

  private final List<String> lines = new CopyOnWriteArrayList<>();
  private final Logger logger = (Logger) LogManager.getLogger(NAME);
  private final Level before = logger.getLevel();
  private final Lines appender = new Lines(lines);

  LogRecord() {
    appender.start();
    logger.addAppender(appender);
    logger.setLevel(Level.DEBUG);
    // They would be lines of the test, too.
    logger.setAdditive(false);
  }

  /** The lines that contain these words. */
  List<String> with(String words) {
    return lines.stream().filter(line -> line.contains(words)).toList();
  }

  @Override
  public void close() {
    logger.removeAppender(appender);
    logger.setLevel(before);
    logger.setAdditive(true);
    appender.stop();
  }

  private static final class Lines extends AbstractAppender {
    private final List<String> lines;

    Lines(List<String> lines) {
      super("forebay-test", null, null, true, Property.EMPTY_ARRAY);
      this.lines = lines;
    }

    @Override
    public void append(LogEvent event) {
      lines.add(event.getMessage().getFormattedMessage());
    }
  }
}
