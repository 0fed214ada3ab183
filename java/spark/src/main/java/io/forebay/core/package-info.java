/**
 * The client core for Java programs: {@link io.forebay.core.ForebayClient} opens files of the PFS,
 * which are then read at memory speed where the agent holds them and from the PFS where it does
 * not. Needs nothing but the JDK and the native library.
 */
package io.forebay.core;
