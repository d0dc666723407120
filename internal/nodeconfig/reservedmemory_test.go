package nodeconfig_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/internal/nodeconfig"
)

func TestMemoryThatCannotBeReservedIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"[{numaNode: 0, limits: {memory: 1Gi}}, {numaNode: 1, limits: {memory: 1Gi, hugepages-2Mi: 2Mi}}]": "",
		"[{numaNode: 0, limits: {memory: 1Gi}}, {numaNode: 0, limits: {memory: 2Gi}}]":                     "is there twice",
		"[{numaNode: 0, limits: {cpu: 1}}]":                                                                "must be memory or hugepages-SIZE",
		"[{numaNode: 0, limits: {memory: 0}}]":                                                             "must be greater than 0",
	} {
		wantProblem(t, "reservedMemory: "+text, want)
	}
}

func TestPoliciesOfTheMemoryManager(t *testing.T) {
	for text, want := range map[string]string{
		"None": "", "Static": "", "static": `memoryManagerPolicy: is "static", must be None or Static`,
		"BestEffort": "must be None",
	} {
		wantProblem(t, "memoryManagerPolicy: "+text, want)
	}
}

// wantProblem checks what is wrong with a file of one field; nothing if want is empty.
func wantProblem(t *testing.T, text, want string) {
	t.Helper()
	base := file("/etc/base.yaml", text+"\n")
	_, errs := nodeconfig.Merge(nodeconfig.Sources{File: &base})
	err := errors.Join(errs...)
	if (err == nil) != (want == "") || (err != nil && !strings.Contains(err.Error(), want)) {
		t.Errorf("%s: %v, want %q", text, err, want)
	}
}
