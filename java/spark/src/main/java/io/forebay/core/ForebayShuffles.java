package io.forebay.core;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;

/**
 * The map outputs of one application in the tier. Made by {@link ForebayClient#beginShuffles} at
 * the driver, which ends the application by closing it or dying, and by {@link
 * ForebayClient#joinShuffles} at executors or {@link ForebayClient#joinJob} in tasks, whose end
 * changes nothing.
 */
public final class ForebayShuffles implements AutoCloseable {
  /** Most blocks of one request. */
  public static final int BLOCKS_MAX = 64;

  /**
   * Adjacent partitions of one map output, or a part of their bytes.
   *
   * @param map the map task's attempt
   * @param end one after the last partition
   * @param from bytes to leave out at the start
   * @param most most bytes to fetch
   */
  public record Block(int shuffle, long map, int first, int end, long from, long most) {
    /** All of their bytes. */
    public Block(int shuffle, long map, int first, int end) {
      this(shuffle, map, first, end, 0, Long.MAX_VALUE);
    }
  }

  private final long handle;
  private final String token;
  private final String origin;
  private final String node;

  ForebayShuffles(long handle, String token, String origin, String node) {
    this.handle = handle;
    this.token = token;
    this.origin = origin;
    this.node = node;
  }

  /** Names the application, with {@link #origin}. */
  public String token() {
    return token;
  }

  /** The node of the driver. */
  public String origin() {
    return origin;
  }

  /** This node, by which others find what is written here. */
  public String node() {
    return node;
  }

  /** At the driver: the application has a shuffle, or has removed it. Fails without the agent. */
  public void setLives(int shuffle, boolean lives) throws ForebayException {
    Native.shuffleLives(handle, shuffle, lives);
  }

  /** Fails if this node's agent does not answer. */
  public void check() throws ForebayException {
    Native.shuffleCheck(handle);
  }

  /** Removes the outputs of a shuffle on this node. */
  public void remove(int shuffle) throws ForebayException {
    Native.shuffleRemove(handle, shuffle);
  }

  /** Begins the output of a map task; fails if there is no room for any. */
  public MapOutput create(int shuffle, long map) throws ForebayException {
    return new MapOutput(Native.outputCreate(handle, shuffle, map));
  }

  /**
   * Nodes of the host with these names or addresses; {@code withSecond}: also those that may have
   * second copies of what was written there.
   */
  public List<String> nodesAt(List<String> hosts, boolean withSecond) throws ForebayException {
    String nodes = new String(Native.shuffleNodesAt(handle, ForebayClient.bytes(String.join("\n", hosts)), withSecond), StandardCharsets.UTF_8);
    return nodes.lines().toList();
  }

  /**
   * Blocks of outputs, at most {@link #BLOCKS_MAX}, from the first of the nodes that has them all.
   * Fails with {@link ForebayException#ENOENT} if one of them is not there.
   */
  public FetchedBlocks fetch(List<String> fromNodes, List<Block> blocks) throws ForebayException {
    ByteBuffer request = ByteBuffer.allocate(blocks.size() * 6 * Long.BYTES);
    for (Block block : blocks) {
      request.putLong(block.shuffle).putLong(block.map).putLong(block.first).putLong(block.end).putLong(block.from).putLong(block.most);
    }
    return new FetchedBlocks(Native.blocksFetch(handle, ForebayClient.bytes(String.join("\n", fromNodes)), request.array()));
  }

  @Override
  public void close() {
    Native.shuffleClose(handle);
  }
}
