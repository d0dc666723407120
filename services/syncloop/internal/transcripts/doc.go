// Package transcripts tells whole stories of pods, for people who want to learn what syncloop does: each file in
// testdata is one, with what every process says and does, and when. The tests of this package tell them anew and
// compare.
//
// The loop, the workers, the store, the decision and the part that acts on the runtime are the product's. The runtime
// is test/fakecri without its socket, configmux and pleg are as much of them as the stories need. The clock is that of
// testing/synctest, which moves on when there is nothing left to do: what takes a second in a story takes no time, and
// is in the same place each time.
package transcripts
