package cri_test

import (
	"strings"
	"testing"

	"github.com/quartet-node/quartet/internal/cri"
)

func TestWithoutIDs(t *testing.T) {
	id := strings.Repeat("0a1f", 16)
	for text, want := range map[string]string{
		"":                                       "",
		"no ID in this":                          "no ID in this",
		`network for sandbox "` + id + `": gone`: `network for sandbox "web": gone`,
		id + " and " + id:                        "web and web",
		"longer: " + id + "0":                    "longer: " + id + "0",
		"shorter: " + id[1:]:                     "shorter: " + id[1:],
		"façade " + id:                           "façade web",
	} {
		if got := cri.WithoutIDs(text, "web"); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
