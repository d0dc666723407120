package replayed

import (
	"bytes"
	"errors"
	"testing"
	"time"
)

func TestDifferencesArePrinted(t *testing.T) {
	d := Difference{
		Time: time.Date(2026, 5, 1, 12, 2, 10, 0, time.UTC), Object: "shop/report", Action: "publish",
		Replayed: "a", Recorded: "b",
	}
	for asJSON, want := range map[bool]string{
		false: "TIME      OBJECT                                ACTION     REPLAYED                                              RECORDED\n" +
			"12:02:10  shop/report                           publish    a                                                     b\nEnd.\n",
		true: `{"difference":{"time":"2026-05-01T12:02:10Z","object":"shop/report","action":"publish","replayed":"a","recorded":"b"}}` +
			"\n" + `{"summary":{"pods":1}}` + "\n",
	} {
		var out bytes.Buffer
		p := NewPrinter(&out, asJSON)
		if err := errors.Join(p.Difference(d), p.Summary("End.", map[string]int{"pods": 1})); err != nil {
			t.Fatal(err)
		}
		if out.String() != want {
			t.Errorf("JSON %t: printed is\n%swant\n%s", asJSON, &out, want)
		}
	}
}
