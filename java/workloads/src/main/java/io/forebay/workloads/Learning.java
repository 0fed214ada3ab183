package io.forebay.workloads;

import java.util.ArrayList;
import java.util.List;
import java.util.Random;

import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.mllib.classification.LogisticRegressionWithSGD;
import org.apache.spark.mllib.classification.SVMWithSGD;
import org.apache.spark.mllib.clustering.KMeans;
import org.apache.spark.mllib.clustering.KMeansModel;
import org.apache.spark.mllib.linalg.Vector;
import org.apache.spark.mllib.linalg.Vectors;
import org.apache.spark.mllib.regression.LabeledPoint;
import org.apache.spark.mllib.regression.LinearRegressionWithSGD;
import org.apache.spark.storage.StorageLevel;

/**
 * The four programs of MLlib that read their input anew in each iteration. The result is a number
 * that is the same whenever the input and the number of iterations are.
 */
enum Learning {
  KMEANS {
    @Override
    double run(JavaRDD<LabeledPoint> points, int iterations) {
      // MLlib persists vectors that nobody has persisted, on the local disk if need be, and would
      // read the input once. It leaves alone what is persisted already, and what does not fit into
      // Spark's storage memory is computed from the input again.
      JavaRDD<Vector> vectors = points.map(LabeledPoint::features).persist(StorageLevel.MEMORY_ONLY());
      KMeansModel model = new KMeans().setK(CLUSTERS).setMaxIterations(iterations).setEpsilon(0).setSeed(SEED)
          .setInitialModel(first(vectors)).run(vectors.rdd());
      vectors.unpersist();
      return model.trainingCost();
    }

    private KMeansModel first(JavaRDD<Vector> vectors) {
      return new KMeansModel(vectors.take(CLUSTERS).toArray(Vector[]::new));
    }
  },

  LOGISTIC {
    @Override
    double run(JavaRDD<LabeledPoint> points, int iterations) {
      LogisticRegressionWithSGD logistic = new LogisticRegressionWithSGD(STEP, iterations, REGULARIZATION, ALL);
      logistic.optimizer().setConvergenceTol(NEVER);
      return norm(logistic.run(points.rdd()).weights());
    }
  },

  LINEAR {
    @Override
    double run(JavaRDD<LabeledPoint> points, int iterations) {
      LinearRegressionWithSGD linear = new LinearRegressionWithSGD(STEP, iterations, REGULARIZATION, ALL);
      linear.optimizer().setConvergenceTol(NEVER);
      return norm(linear.run(points.rdd()).weights());
    }
  },

  SVM {
    @Override
    double run(JavaRDD<LabeledPoint> points, int iterations) {
      SVMWithSGD svm = new SVMWithSGD();
      svm.optimizer().setStepSize(STEP).setNumIterations(iterations).setRegParam(REGULARIZATION).setMiniBatchFraction(ALL).setConvergenceTol(NEVER);
      return norm(svm.run(points.rdd()).weights());
    }
  };

  private static final int DIMENSIONS = 64;
  /** Of a point in a file: Java's serialization adds a ninth, as it was seen. */
  private static final double POINT_BYTES = Double.BYTES * DIMENSIONS * 10 / 9.0;
  private static final int CLUSTERS = 10;
  private static final double STEP = 0.1;
  private static final double REGULARIZATION = 0.01;
  /** Share of the points in each iteration. */
  private static final double ALL = 1.0;
  /** All iterations are run. */
  private static final double NEVER = 0.0;
  private static final long SEED = 20180901;

  abstract double run(JavaRDD<LabeledPoint> points, int iterations);

  static Learning named(String name) {
    return valueOf(name.toUpperCase());
  }

  /** Writes so many files, of about `bytes` together, as sequence files of serialized points. */
  static void generate(JavaSparkContext context, String directory, int files, long bytes) {
    int points = (int) (bytes / files / POINT_BYTES);
    List<Integer> numbers = new ArrayList<>();
    for (int i = 0; i < files; i++) {
      numbers.add(i);
    }
    context.parallelize(numbers, files).flatMap(number -> points(number, points).iterator()).saveAsObjectFile(directory);
  }

  /** Two clouds of points with labels 0 and 1. */
  private static List<LabeledPoint> points(int number, int count) {
    Random random = new Random(SEED + number);
    List<LabeledPoint> points = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      int label = i % 2;
      double[] features = random.doubles(DIMENSIONS, label - 1.0, label).toArray();
      points.add(new LabeledPoint(label, Vectors.dense(features)));
    }
    return points;
  }

  private static double norm(Vector weights) {
    return Vectors.norm(weights, 2);
  }
}
