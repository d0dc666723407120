package drivererror_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/drivererror"
)

func TestTheErrorOfADriver(t *testing.T) {
	for text, want := range map[string]string{
		"no such volume":                    "no such volume",
		"mount failed\nOutput:\tnone":       "mount failed\nOutput:\tnone",
		"\x1b[31mred\x1b[0m\r\x00":          "�[31mred�[0m��",
		"right\u202eto left\xff":            "right�to left�",
		strings.Repeat("é", 1<<20):          strings.Repeat("é", 510) + "…",
		"a" + strings.Repeat("é", 1<<20):    "a" + strings.Repeat("é", 510) + "…",
		strings.Repeat("\x1b", 1<<20) + "x": strings.Repeat("�", 1021) + "…",
	} {
		err := drivererror.Of(fmt.Errorf("wrapped: %w", status.Error(codes.Aborted, text)))
		got := status.Convert(err)
		if got.Code() != codes.Aborted || !strings.HasPrefix(got.Message(), "wrapped: ") ||
			!utf8.ValidString(got.Message()) || len(got.Message()) > 3*1024 {
			t.Errorf("%.40q: %v", text, err)
		}
		if got := status.Convert(drivererror.Of(status.Error(codes.Aborted, text))).Message(); got != want {
			t.Errorf("%.40q: %.80q, want %.80q", text, got, want)
		}
	}
	if err := drivererror.Of(nil); err != nil {
		t.Errorf("no error: %v", err)
	}
	if err := errors.New("\x1b"); !errors.Is(drivererror.Of(err), err) {
		t.Error("an error that is not a driver's is another one")
	}
}

func TestABoundedText(t *testing.T) {
	for text, want := range map[string]string{
		"DiskSlow":                 "DiskSlow",
		"a\x00b":                   "a�b",
		strings.Repeat("x", 17):    strings.Repeat("x", 13) + "…",
		strings.Repeat("\x1b", 9):  "����…",
		strings.Repeat("\xff", 20): "…",
	} {
		if got := drivererror.Bounded(text, 16); got != want || len(got) > 16 {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
