package main

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/compiler/protogen"
)

func TestCommentsBecomeParagraphsAndCode(t *testing.T) {
	comment := protogen.Comments(" First words\n of it.\n\n   OPENED (DELTA)*\n\n " + strings.Repeat("word ", 40) + "\n")
	got := plain(comment)
	if !strings.HasPrefix(got, "First words of it.\n\n    OPENED (DELTA)*\n\nword word") {
		t.Errorf("plain() = %q", got)
	}
	for line := range strings.Lines(got) {
		if len(line) > width+1 {
			t.Errorf("the line %q is too long", line)
		}
	}
}

func TestACellIsOneLineWithoutBars(t *testing.T) {
	if got := cell(" One | two\n three.\n"); got != `One \| two three.` {
		t.Errorf("cell() = %q", got)
	}
}
