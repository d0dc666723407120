// Package trace is the command that prints how a pod started last, from its trace in Jaeger: a waterfall in the terminal with
// the slowest step marked.
//
// The way through it: find.go asks the node which trace that is, else searches Jaeger; jaeger.go fetches it and decode.go
// reads it; tree.go says which span is below which, way.go which of them the pod waited for; lines.go and draw.go lay it
// out. All but the first two are functions of what they are given.
package trace
