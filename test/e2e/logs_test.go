package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestALogThatGrowsIsRotatedAndLosesNoLine has a container write more than containerLogMaxSize, and follows its log
// meanwhile.
func TestALogThatGrowsIsRotatedAndLosesNoLine(t *testing.T) {
	const name, file = "chatty", "chatty.yaml"
	// About 5 MiB a second in lines of 8 KiB, so that the log reaches 10 MiB within a few seconds.
	place(t, file, manifest(name, 1, "serve", "-every", "1500us", "-message", strings.Repeat("x", 8<<10)))
	p := await(t, name, "Ready", ready)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	type output struct {
		text string
		err  error
	}
	followed := make(chan output, 1)
	go func() {
		text, err := node.Command(ctx, "logs", "e2e/"+p.Name, "-f")
		followed <- output{text, err}
	}()
	folder := filepath.Join(node.Layout.PodLogs(), "e2e_"+p.Name+"_"+string(p.UID), "main")
	link := filepath.Join(node.Layout.Logs(), "containers", p.Name+"_e2e_main-"+strings.TrimPrefix(containerIDs(p)["main"], "containerd://")+".log")
	awaitThat(t, "the log is linked to", func() bool {
		target, err := os.Readlink(link)
		return err == nil && target == filepath.Join(folder, "0.log")
	})
	awaitThat(t, "the log is put aside", func() bool {
		files, err := filepath.Glob(filepath.Join(folder, "0.log.*"))
		return err == nil && len(files) > 0
	})
	takeAway(t, file)
	got := <-followed
	if got.err != nil {
		t.Fatalf("quartet logs -f: it ends with %.200q", got.text[strings.LastIndex(strings.TrimSpace(got.text), "\n")+1:])
	}
	last := 0
	for i, line := range strings.Split(strings.TrimSpace(got.text), "\n") {
		_, number, found := strings.Cut(line, ": line ")
		if !found {
			if i > 0 && line != "bye" {
				t.Fatalf("line %d is %.100q", i, line)
			}
			continue
		}
		if n, err := strconv.Atoi(number); err != nil || n != last+1 {
			t.Fatalf("line %s comes after line %d", number, last)
		}
		last++
	}
	if last*(8<<10) < 10<<20 {
		t.Errorf("%d lines are less than what is put aside", last)
	}
	awaitGone(t, name)
	awaitThat(t, "the logs and the link are gone", func() bool {
		_, err := os.Lstat(link)
		_, dirErr := os.Stat(folder)
		return os.IsNotExist(err) && os.IsNotExist(dirErr)
	})
}
