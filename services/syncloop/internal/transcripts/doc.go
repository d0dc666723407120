// Package transcripts plays stories of pods, which show what syncloop does. Each file in testdata is the transcript of
// one story: the actions and log lines of every process with their times. The tests play the stories again and compare
// the transcripts.
//
// The loop, the workers, the store, the decisions and the executor are the product's. The runtime is test/fakecri
// without its socket, and configmux and pleg are small fakes. The clock is that of testing/synctest, which advances
// when there is nothing left to do. So a second in a story takes no time, and the transcript is the same each time.
package transcripts
