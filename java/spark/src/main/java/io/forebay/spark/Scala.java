package io.forebay.spark;

import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.List;

/** Calls whose signatures differ between Scala 2.12 and 2.13, by name. */
final class Scala {
  private Scala() {}

  /** The value of a method without parameters. */
  static Object call(Object target, String method) throws ReflectiveOperationException {
    return unwrap(target.getClass().getMethod(method), target);
  }

  /** The value of a method of one number. */
  static Object call(Object target, String method, int argument) throws ReflectiveOperationException {
    return unwrap(target.getClass().getMethod(method, int.class), target, argument);
  }

  /** The value of a method of one argument, declared as a {@code type}. */
  static Object call(Object target, String method, Class<?> type, Object argument) throws ReflectiveOperationException {
    return unwrap(target.getClass().getMethod(method, type), target, argument);
  }

  /** Whether there is such a method, of parameters of these types. */
  static boolean has(Object target, String method, Class<?>... types) {
    try {
      target.getClass().getMethod(method, types);
      return true;
    } catch (NoSuchMethodException e) {
      return false;
    }
  }

  /** The elements of a Seq, an Option or any other collection of Scala's. */
  static List<Object> list(Object collection) throws ReflectiveOperationException {
    Object found = call(collection, "iterator");
    if (!(found instanceof scala.collection.Iterator<?> all)) {
      throw new NoSuchMethodException("iterator of " + collection.getClass().getName());
    }
    List<Object> list = new ArrayList<>();
    while (all.hasNext()) {
      list.add(all.next());
    }
    return list;
  }

  /** These as a Seq of either Scala. */
  static scala.collection.immutable.List<Object> seq(List<Object> elements) {
    @SuppressWarnings("unchecked") // An empty list has elements of any type.
    scala.collection.immutable.List<Object> list = (scala.collection.immutable.List<Object>) (Object) scala.collection.immutable.Nil$.MODULE$;
    for (int i = elements.size() - 1; i >= 0; i--) {
      list = new scala.collection.immutable.$colon$colon<>(elements.get(i), list);
    }
    return list;
  }

  private static Object unwrap(java.lang.reflect.Method method, Object target, Object... arguments) throws ReflectiveOperationException {
    try {
      // A public method of a class that is not public itself, as Scala's collections are.
      method.setAccessible(true);
      return method.invoke(target, arguments);
    } catch (InvocationTargetException e) {
      if (e.getCause() instanceof RuntimeException cause) {
        throw cause;
      }
      throw e;
    }
  }
}
