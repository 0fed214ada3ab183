package io.forebay.core;

/**
 * How a client finds its agent. What is null or negative comes from the environment
 * (FOREBAY_SOCKET, FOREBAY_DEADLINE_MS, FOREBAY_TRUST_UID) or is the default.
 *
 * @param socket the agent's socket, "none" for no agent, null for the usual one
 * @param deadlineMs how long a read waits for the agent before it reads the PFS itself
 * @param readAheadBytes most bytes that the agent is asked for ahead of a reader; 0: none,
 * negative: as the agent says
 * @param trustedUid user whose agent is believed, beside root and one's own
 * @param quiet say nothing on stderr when the agent does not answer
 */
public record ClientOptions(String socket, long deadlineMs, long readAheadBytes, long trustedUid, boolean quiet) {
  /** All from the environment. */
  public static final ClientOptions DEFAULT = new ClientOptions(null, -1, -1, -1, false);
}
