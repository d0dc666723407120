package updown

import (
	"io"
	"slices"
	"testing"

	"github.com/spf13/pflag"

	"github.com/quartet-node/quartet/internal/layout"
)

// What up is told of host privileges goes to the node in the foreground and to the one in the background alike.
func TestUpPassesHostPrivilegesOn(t *testing.T) {
	l, err := layout.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	n := &node{layout: l}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	n.opts.hostPrivileges.Add(flags)
	want := []string{"--host-network-sources=", "--privileged-sources=file"}
	if err := flags.Parse(want); err != nil {
		t.Fatal(err)
	}
	args := n.foregroundArgs()
	if got := args[len(args)-2:]; !slices.Equal(got, want) {
		t.Errorf("in the background it is told %q, want %q", got, want)
	}
	options := n.nodeOptions()
	if got := options.HostPrivileges.Args(); !slices.Equal(got, want) {
		t.Errorf("in the foreground it is told %q, want %q", got, want)
	}
}

func TestUpRefusesSourcesThatDoNotExistBeforeItStartsAnything(t *testing.T) {
	cmd := UpCommand()
	cmd.SetArgs([]string{"--state-dir", t.TempDir(), "--host-pid-sources", "files"})
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	cmd.SilenceUsage = true
	const want = `the configuration is wrong: --host-pid-sources: "files" is no source of pods: name file, http, api, local, separated by commas, or * for all`
	if err := cmd.ExecuteContext(t.Context()); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
