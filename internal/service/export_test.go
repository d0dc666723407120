package service

// Answers is the Check of the server of a process.
var Answers = answers
