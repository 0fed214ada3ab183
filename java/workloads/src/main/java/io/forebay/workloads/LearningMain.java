package io.forebay.workloads;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.mllib.regression.LabeledPoint;

/**
 * {@code LearningMain generate DIRECTORY FILES BYTES} writes the input; {@code LearningMain run
 * INPUT ITERATIONS REPORT PROGRAM...} runs programs one after the other, and writes when each of
 * them and each of their jobs ran to the file REPORT, as JSON, after every program.
 *
 * <p>{@code LearningMain read INPUT SECONDS REPORT} is the sequential reader, by Hadoop's file
 * system alone.
 */
public final class LearningMain {
  private LearningMain() {}

  public static void main(String[] arguments) throws IOException {
    switch (arguments[0]) {
      case "read" -> {
        int skip = arguments.length > 4 ? Integer.parseInt(arguments[4]) : 0;
        Reading.run(arguments[1], Double.parseDouble(arguments[2]), Path.of(arguments[3]), skip);
      }
      case "generate" -> {
        try (JavaSparkContext context = new JavaSparkContext(new SparkConf().setAppName("generate"))) {
          Learning.generate(context, arguments[1], Integer.parseInt(arguments[2]), Long.parseLong(arguments[3]));
        }
      }
      case "run" -> {
        try (JavaSparkContext context = new JavaSparkContext(new SparkConf().setAppName("learning"))) {
          run(context, arguments);
        }
      }
      default -> throw new IllegalArgumentException("wanted: generate, run or read, not " + arguments[0]);
    }
  }

  private static void run(JavaSparkContext context, String[] arguments) throws IOException {
    int iterations = Integer.parseInt(arguments[2]);
    JobLog jobs = new JobLog();
    context.sc().addSparkListener(jobs);
    List<String> reports = new ArrayList<>();
    for (int i = 4; i < arguments.length; i++) {
      JavaRDD<LabeledPoint> points = context.objectFile(arguments[1]);
      long began = System.currentTimeMillis();
      double result = Learning.named(arguments[i]).run(points, iterations);
      long ended = System.currentTimeMillis();
      reports.add(String.format(Locale.ROOT, "{\"name\": \"%s\", \"began_ms\": %d, \"ended_ms\": %d, \"result\": %s, \"jobs_ms\": %s}",
          arguments[i], began, ended, result, jobs.json(began)));
      // What a killed machine has done remains known.
      Files.write(Path.of(arguments[3]), ("[" + String.join(",\n", reports) + "]\n").getBytes(StandardCharsets.UTF_8));
    }
  }
}
