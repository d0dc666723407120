package kubeletcmd

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	netutils "k8s.io/utils/net"
)

// fieldValue is a flag that sets a field. It implements pflag.Value.
type fieldValue struct {
	// kind is the type in the help.
	kind string
	// read returns the value of the field from the text, and from the present value if the flag is repeated.
	read func(before any, text string) (any, error)
	text string
	// value is the value as encoding/json decodes it; nil if the flag is not given, or leaves the field unchanged.
	value any
}

func (v *fieldValue) String() string { return v.text }

func (v *fieldValue) Type() string { return v.kind }

func (v *fieldValue) Set(text string) error {
	value, err := v.read(v.value, text)
	if err != nil {
		return err
	}
	v.value, v.text = value, text
	return nil
}

func single(kind string, read func(text string) (any, error)) func() *fieldValue {
	return func() *fieldValue {
		return &fieldValue{kind: kind, read: func(_ any, text string) (any, error) { return read(text) }}
	}
}

var (
	boolean = single("bool", func(text string) (any, error) {
		value, err := strconv.ParseBool(text)
		return value, shown(err)
	})
	int32Number = single("int32", func(text string) (any, error) {
		value, err := strconv.ParseInt(text, 0, 32)
		return value, shown(err)
	})
	uint32Number = single("uint32", func(text string) (any, error) {
		value, err := strconv.ParseUint(text, 0, 32)
		return value, shown(err)
	})
	int64Number = single("int64", func(text string) (any, error) {
		value, err := strconv.ParseInt(text, 0, 64)
		return value, shown(err)
	})
	word     = single("string", func(text string) (any, error) { return text, nil })
	duration = single("duration", func(text string) (any, error) {
		value, err := time.ParseDuration(text)
		return value.String(), err
	})
	quantity = single("quantity", func(text string) (any, error) {
		value, err := resource.ParseQuantity(text)
		return value.String(), err
	})
	address = single("ip", func(text string) (any, error) {
		if text == "" {
			return nil, nil
		}
		ip := netutils.ParseIPSloppy(text)
		if ip == nil {
			return nil, fmt.Errorf("%q is not an IP address", text)
		}
		return ip.String(), nil
	})
	taints = single("taints", parseTaints)
)

// shown returns the error without the names of Go functions; pflag adds the text and the flag.
func shown(err error) error {
	var number *strconv.NumError
	if errors.As(err, &number) {
		return number.Err
	}
	return err
}

// list is a list separated by commas, which may be repeated.
func list() *fieldValue {
	return &fieldValue{kind: "strings", read: func(before any, text string) (any, error) {
		words, err := commas(text)
		if err != nil {
			return nil, err
		}
		out, ok := before.([]any)
		if !ok {
			out = []any{}
		}
		for _, word := range words {
			out = append(out, word)
		}
		return out, nil
	}}
}

// commas splits a text at commas. A part with a comma is in double quotes.
func commas(text string) ([]string, error) {
	parts, err := csv.NewReader(strings.NewReader(text)).Read()
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	return parts, err
}

// mapping is a list of pairs separated by commas, which may be repeated. An empty text is an empty mapping.
func mapping(kind, separator string, convert func(text string) (any, error)) func() *fieldValue {
	return func() *fieldValue {
		return &fieldValue{kind: kind, read: func(before any, text string) (any, error) {
			out := begun(before)
			for pair := range strings.SplitSeq(text, ",") {
				if pair == "" {
					continue
				}
				if err := addPair(out, pair, separator, convert); err != nil {
					return nil, err
				}
			}
			return out, nil
		}}
	}
}

// onePair is a mapping with one pair in each flag, whose value may contain commas.
func onePair() *fieldValue {
	return &fieldValue{kind: "KEY=VALUE", read: func(before any, text string) (any, error) {
		out := begun(before)
		return out, addPair(out, text, "=", asIs)
	}}
}

func begun(before any) map[string]any {
	if out, ok := before.(map[string]any); ok {
		return out
	}
	return map[string]any{}
}

func addPair(into map[string]any, pair, separator string, convert func(text string) (any, error)) error {
	key, text, ok := strings.Cut(pair, separator)
	if !ok {
		return fmt.Errorf("%q must be KEY%sVALUE", pair, separator)
	}
	key, text = strings.TrimSpace(key), strings.TrimSpace(text)
	value, err := convert(text)
	if err != nil {
		return fmt.Errorf("%s: %q: %w", key, text, err)
	}
	into[key] = value
	return nil
}

func asIs(text string) (any, error) { return text, nil }

func asBool(text string) (any, error) {
	value, err := strconv.ParseBool(text)
	if err != nil {
		return nil, errors.New("must be true or false")
	}
	return value, nil
}

var (
	pairs      = mapping("KEY=VALUE,...", "=", asIs)
	gates      = mapping("GATE=BOOL,...", "=", asBool)
	thresholds = mapping("SIGNAL<AMOUNT,...", "<", asIs)
)

// headers are NAME:VALUE, separated by commas; a name may be repeated.
func headers() *fieldValue {
	return &fieldValue{kind: "NAME:VALUE,...", read: func(before any, text string) (any, error) {
		out := begun(before)
		for pair := range strings.SplitSeq(text, ",") {
			if pair == "" {
				continue
			}
			name, value, ok := strings.Cut(pair, ":")
			if !ok {
				// The error does not quote the text because it may be a password.
				return nil, errors.New("must be NAME:VALUE, separated by commas")
			}
			name = strings.TrimSpace(name)
			values, ok := out[name].([]any)
			if !ok {
				values = []any{}
			}
			out[name] = append(values, strings.TrimSpace(value))
		}
		return out, nil
	}}
}

// taintEffects are the valid effects of a taint.
var taintEffects = []v1.TaintEffect{v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute}

// parseTaints parses KEY=VALUE:EFFECT or KEY:EFFECT, separated by commas.
func parseTaints(text string) (any, error) {
	if text == "" {
		return []any{}, nil
	}
	out := []any{}
	seen := map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		pair, effect, ok := strings.Cut(part, ":")
		key, value, _ := strings.Cut(pair, "=")
		if !ok || !isTaintEffect(effect) {
			return nil, fmt.Errorf("%q must be KEY=VALUE:EFFECT with the effect NoSchedule, PreferNoSchedule or NoExecute", part)
		}
		problems := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...)
		if len(problems) > 0 {
			return nil, fmt.Errorf("%q: %s", part, strings.Join(problems, "; "))
		}
		if seen[key+":"+effect] {
			return nil, fmt.Errorf("%q: the key has this effect already", part)
		}
		seen[key+":"+effect] = true
		taint := map[string]any{"key": key, "effect": effect}
		if value != "" {
			taint["value"] = value
		}
		out = append(out, taint)
	}
	return out, nil
}

func isTaintEffect(text string) bool {
	for _, effect := range taintEffects {
		if text == string(effect) {
			return true
		}
	}
	return false
}

// reservedMemory is NUMA-NODE:TYPE=AMOUNT,TYPE=AMOUNT, separated by semicolons, which may be repeated.
func reservedMemory() *fieldValue {
	return &fieldValue{kind: "NODE:TYPE=AMOUNT,...", read: func(before any, text string) (any, error) {
		if text == "" {
			return nil, nil
		}
		out, ok := before.([]any)
		if !ok {
			out = []any{}
		}
		for part := range strings.SplitSeq(text, ";") {
			node, amounts, ok := strings.Cut(part, ":")
			number, err := strconv.ParseInt(node, 10, 32)
			if !ok || err != nil {
				return nil, fmt.Errorf("%q must be NODE:TYPE=AMOUNT,TYPE=AMOUNT, for example 0:memory=1Gi", part)
			}
			limits := map[string]any{}
			for amount := range strings.SplitSeq(amounts, ",") {
				if err := addPair(limits, amount, "=", asQuantity); err != nil {
					return nil, err
				}
			}
			out = append(out, map[string]any{"numaNode": number, "limits": limits})
		}
		return out, nil
	}}
}

func asQuantity(text string) (any, error) {
	value, err := resource.ParseQuantity(text)
	if err != nil {
		return nil, errors.New("is not an amount, for example 1Gi")
	}
	return value.String(), nil
}

// modules are PATTERN=LEVEL, separated by commas.
func modules() *fieldValue {
	return &fieldValue{kind: "PATTERN=LEVEL,...", read: func(_ any, text string) (any, error) {
		out := []any{}
		for part := range strings.SplitSeq(text, ",") {
			if part == "" {
				continue
			}
			pattern, level, ok := strings.Cut(part, "=")
			number, err := strconv.ParseUint(level, 10, 32)
			if !ok || pattern == "" || err != nil {
				return nil, fmt.Errorf("%q must be PATTERN=LEVEL", part)
			}
			out = append(out, map[string]any{"filePattern": pattern, "verbosity": number})
		}
		return out, nil
	}}
}
